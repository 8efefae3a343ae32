/* On a terminal, a bar for the current epoch; elsewhere a line every half minute. Every epoch gets a line,
 * with its evaluation where there is one. */
#include "cli/progress_bar.h"

#include "cli/cli.h"
#include "cli/support.h"
#include "cli/terminal.h"

#include <string.h>

static const double bar_interval = 0.1;   /* seconds between two drawings of the bar */
static const double line_interval = 30.0; /* seconds between lines where there is no bar */

void dsc_cli_progress_init(dsc_cli_progress *progress, int verbose) {
    memset(progress, 0, sizeof *progress);
    progress->lines = stdout;
    progress->bar = dsc_terminal_is(stderr) ? stderr : NULL;
    progress->utf8 = dsc_terminal_utf8();
    progress->verbose = verbose;
    progress->epoch_start = progress->last = dsc_cli_now();
}

static void erase_bar(dsc_cli_progress *progress) {
    if (!progress->drawn)
        return;
    fputs("\r\033[K", progress->bar);
    fflush(progress->bar);
    progress->drawn = 0;
}

static void write_line(dsc_cli_progress *progress, const char *text) {
    erase_bar(progress);
    fprintf(progress->lines, "%s\n", text);
    fflush(progress->lines);
}

/* `cells` characters, `share` of them filled; with UTF-8 in eighths of a character. */
static void append_bar(char *text, size_t size, int cells, double share, int utf8) {
    static const char *const eighths[] = {" ", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
    size_t used = strlen(text);
    int filled = (int)(share * cells * 8);
    for (int i = 0; i < cells && used < size; i++) {
        int here = filled - 8 * i;
        const char *full = utf8 ? "█" : "#";
        const char *part = utf8 ? eighths[here > 0 ? here % 8 : 0] : "-";
        used += (size_t)snprintf(text + used, size - used, "%s", here >= 8 ? full : part);
    }
}

static void draw_bar(dsc_cli_progress *progress, const dsc_progress *e) {
    char head[64], tail[128], left[32], text[1024];
    double share = e->epoch_steps > 0 ? (double)e->step_of_epoch / (double)e->epoch_steps : 0;
    share = share < 0 ? 0 : share > 1 ? 1 : share;
    snprintf(head, sizeof head, "epoch %lld/%lld ", (long long)e->epoch + 1, (long long)e->epochs);
    snprintf(tail, sizeof tail, " %3.0f%%  loss %.4f  %.0f images/s  %s left", 100 * share, e->loss,
             e->images_per_s, dsc_cli_duration(e->eta_s, left, sizeof left));
    int cells = dsc_terminal_width(progress->bar) - (int)strlen(head) - (int)strlen(tail) - 3;
    cells = cells > 40 ? 40 : cells;
    snprintf(text, sizeof text, "%s", head);
    if (cells >= 5) {
        strncat(text, progress->utf8 ? "▕" : "[", sizeof text - strlen(text) - 1);
        append_bar(text, sizeof text - 4, cells, share, progress->utf8);
        strncat(text, progress->utf8 ? "▏" : "]", sizeof text - strlen(text) - 1);
    }
    fprintf(progress->bar, "\r%s%s\033[K", text, tail);
    fflush(progress->bar);
    progress->drawn = 1;
}

static void show_step(dsc_cli_progress *progress, const dsc_progress *e) {
    double now = dsc_cli_now();
    if (now - progress->last < (progress->bar ? bar_interval : line_interval))
        return;
    progress->last = now;
    if (progress->bar) {
        draw_bar(progress, e);
        return;
    }
    char text[256], left[32];
    snprintf(text, sizeof text, "epoch %lld/%lld, step %lld/%lld: loss %.4f, %.0f images/s, %s left",
             (long long)e->epoch + 1, (long long)e->epochs, (long long)e->step_of_epoch,
             (long long)e->epoch_steps, e->loss, e->images_per_s,
             dsc_cli_duration(e->eta_s, left, sizeof left));
    write_line(progress, text);
}

/* Prints the pending epoch, with its evaluation unless that is NULL. */
static void show_epoch(dsc_cli_progress *progress, const dsc_progress *eval) {
    char text[320], seconds[32], validation[128] = "";
    const dsc_progress *e = &progress->epoch;
    progress->pending = 0;
    if (eval)
        snprintf(validation, sizeof validation, ", validation loss %.4f, top-1 %.2f %%, top-5 %.2f %%",
                 eval->loss, 100 * eval->top1, 100 * eval->top5);
    snprintf(text, sizeof text, "epoch %*lld/%lld: loss %.4f%s, %.0f images/s, %s", e->epochs > 99 ? 3 : 2,
             (long long)e->epoch + 1, (long long)e->epochs, e->loss, validation, e->images_per_s,
             dsc_cli_duration(progress->epoch_seconds, seconds, sizeof seconds));
    write_line(progress, text);
    progress->last = dsc_cli_now();
}

static void show_eval(dsc_cli_progress *progress, const dsc_progress *e) {
    char text[256];
    if (progress->pending) {
        show_epoch(progress, e);
        return;
    }
    snprintf(text, sizeof text, "validation at step %lld: loss %.4f, top-1 %.2f %%, top-5 %.2f %%",
             (long long)e->step, e->loss, 100 * e->top1, 100 * e->top5);
    write_line(progress, text);
}

void dsc_cli_progress_event(void *context, const dsc_progress *e) {
    dsc_cli_progress *progress = context;
    if (progress->pending && e->kind != DSC_EVENT_EVAL && e->kind != DSC_EVENT_CHECKPOINT)
        show_epoch(progress, NULL);
    switch (e->kind) {
    case DSC_EVENT_STEP:
        show_step(progress, e);
        break;
    case DSC_EVENT_EPOCH:
        progress->epoch = *e;
        progress->pending = 1;
        progress->epoch_seconds = dsc_cli_now() - progress->epoch_start;
        progress->epoch_start = dsc_cli_now();
        break;
    case DSC_EVENT_EVAL:
        show_eval(progress, e);
        break;
    case DSC_EVENT_CHECKPOINT:
        if (progress->verbose && e->text)
            write_line(progress, e->text);
        break;
    case DSC_EVENT_START:
    case DSC_EVENT_NOTE:
        if (e->text)
            write_line(progress, e->text);
        break;
    }
}

void dsc_cli_progress_end(dsc_cli_progress *progress) {
    if (progress->pending)
        show_epoch(progress, NULL);
    erase_bar(progress);
}
