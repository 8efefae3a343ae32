/* Numbers and durations as text, text as a field of CSV. */
#include "cli/cli.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

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

/* The number of bytes of the character at `text` in UTF-8; 0: it is not UTF-8. */
static int utf8_length(const unsigned char *text) {
    static const struct {
        unsigned char mask, bits, low, high; /* of the first byte; range of the second */
        int length;
    } forms[] = {{0x80, 0x00, 0, 0, 1},       {0xe0, 0xc0, 0x80, 0xbf, 2}, {0xff, 0xe0, 0xa0, 0xbf, 3},
                 {0xff, 0xed, 0x80, 0x9f, 3}, {0xf0, 0xe0, 0x80, 0xbf, 3}, {0xff, 0xf0, 0x90, 0xbf, 4},
                 {0xff, 0xf4, 0x80, 0x8f, 4}, {0xf8, 0xf0, 0x80, 0xbf, 4}};
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        if ((text[0] & forms[i].mask) != forms[i].bits)
            continue;
        if (forms[i].length > 1 &&
            (text[0] < 0xc2 || text[0] > 0xf4 || text[1] < forms[i].low || text[1] > forms[i].high))
            return 0;
        for (int j = 2; j < forms[i].length; j++)
            if ((text[j] & 0xc0) != 0x80)
                return 0;
        return forms[i].length;
    }
    return 0;
}

char *dsc_cli_clean(const char *text, char *out, size_t size) {
    const unsigned char *from = (const unsigned char *)text;
    size_t used = 0;
    while (*from) {
        int length = utf8_length(from);
        int control = *from < 0x20 || *from == 0x7f || (length == 2 && from[0] == 0xc2 && from[1] < 0xa0);
        const char *written = length == 0 ? "\xef\xbf\xbd" : control ? "?" : (const char *)from;
        size_t bytes = length == 0 ? 3 : control ? 1 : (size_t)length;
        if (used + bytes >= size)
            break;
        memcpy(out + used, written, bytes);
        used += bytes;
        from += length > 0 ? length : 1;
    }
    out[used] = '\0';
    return out;
}

void dsc_cli_print_csv(FILE *out, const char *text) {
    int quoted = strpbrk(text, ",\"\r\n") != NULL;
    if (quoted)
        fputc('"', out);
    for (; *text; text++) {
        if (*text == '"')
            fputc('"', out);
        fputc(*text, out);
    }
    if (quoted)
        fputc('"', out);
}
