/* Numbers and durations as text. */
#include "cli/cli.h"

#include <math.h>
#include <stdio.h>

const char *dsc_cli_duration(double seconds, char *text, size_t size) {
    if (!isfinite(seconds) || seconds < 0 || seconds >= 1e9)
        snprintf(text, size, "?");
    else if (seconds < 9.95)
        snprintf(text, size, "%.1fs", seconds);
    else if (seconds < 59.5)
        snprintf(text, size, "%.0fs", seconds);
    else if (seconds < 3599.5)
        snprintf(text, size, "%dm%02ds", (int)(seconds + 0.5) / 60, (int)(seconds + 0.5) % 60);
    else
        snprintf(text, size, "%dh%02dm", (int)(seconds + 30) / 3600, (int)(seconds + 30) % 3600 / 60);
    return text;
}

const char *dsc_cli_grouped(int64_t number, char *text, size_t size) {
    char digits[32];
    int length = snprintf(digits, sizeof digits, "%lld", (long long)number);
    size_t used = 0;
    for (int i = 0; i < length && used + 2 < size; i++) {
        if (i > 0 && digits[i - 1] != '-' && (length - i) % 3 == 0)
            text[used++] = ',';
        text[used++] = digits[i];
    }
    text[used] = '\0';
    return text;
}
