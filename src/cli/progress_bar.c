/* On a terminal, a bar for the current epoch; elsewhere a line every few seconds. Every epoch gets a line,
 * with its evaluation where there is one. Lines have at most 80 columns, on a wider terminal its width. */
#include "cli/progress_bar.h"

#include "cli/cli.h"
#include "cli/support.h"
#include "cli/terminal.h"

#include <math.h>
#include <string.h>

enum { LABEL_COLUMNS = 11, WIDEST = 110, ROOM_FOR_BAR = 20 };

static const double bar_interval = 0.1; /* seconds between two drawings of the bar */

void dsc_cli_progress_init(dsc_cli_progress *progress, int verbose, double every) {
    memset(progress, 0, sizeof *progress);
    progress->lines = stdout;
    progress->bar = dsc_terminal_is(stderr) ? stderr : NULL;
    progress->utf8 = dsc_terminal_utf8();
    progress->verbose = verbose;
    progress->colour = dsc_terminal_colour(stdout);
    progress->bar_colour = dsc_terminal_colour(stderr);
    progress->every = every;
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

/* "2.3026"; a loss that has exploded in few characters. */
static const char *loss_text(double loss, char *text, size_t size) {
    if (isfinite(loss))
        snprintf(text, size, fabs(loss) < 1e4 ? "%.4f" : "%.2e", loss);
    else
        snprintf(text, size, "not finite");
    return text;
}

/* ---- the bar ---- */

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

/* "1234 images/s", or tokens of models of sequences. */
static const char *rate_text(const dsc_progress *e, char *text, size_t size) {
    snprintf(text, size, "%.0f %s/s", e->images_per_s * (double)(e->tokens > 0 ? e->tokens : 1),
             e->tokens > 0 ? "tokens" : "images");
    return text;
}

/* ", mfu 43.2 %": the share of the devices' peak that the step's operations are; "" where it is not known. */
static const char *use_text(const dsc_progress *e, char *text, size_t size) {
    text[0] = '\0';
    if (e->mfu > 0)
        snprintf(text, size, ", mfu %.1f %%", 100 * e->mfu);
    return text;
}

/* Shows the pieces that fit into the width, the most important first; what remains is the bar's. A line that
 * is wrapped could not be erased; the last columns are for the ^C that a terminal shows. */
static void draw_bar(dsc_cli_progress *progress, const dsc_progress *e) {
    char pieces[5][64], loss[32], left[32], rate[40], use[32], tail[240] = "", bar[400] = "";
    double share = e->epoch_steps > 0 ? (double)e->step_of_epoch / (double)e->epoch_steps : 0;
    share = share < 0 ? 0 : share > 1 ? 1 : share;
    snprintf(pieces[0], sizeof pieces[0], "epoch %lld/%lld", (long long)e->epoch + 1, (long long)e->epochs);
    snprintf(pieces[1], sizeof pieces[1], " %3.0f%%", 100 * share);
    snprintf(pieces[2], sizeof pieces[2], "  loss %s", loss_text(e->loss, loss, sizeof loss));
    snprintf(pieces[3], sizeof pieces[3], "  %s", rate_text(e, rate, sizeof rate));
    snprintf(pieces[4], sizeof pieces[4], "  %s left", dsc_cli_duration(e->eta_s, left, sizeof left));
    int room = dsc_terminal_width(progress->bar) - 3 - (int)strlen(pieces[0]);
    for (int i = 1; i < 5 && room >= (int)strlen(pieces[i]); i++) {
        strcat(tail, pieces[i]);
        room -= (int)strlen(pieces[i]);
    }
    use_text(e, use, sizeof use);
    if (use[0] && room - (int)strlen(use) >= ROOM_FOR_BAR) {
        strcat(tail, use);
        room -= (int)strlen(use);
    }
    int cells = room - 3 > 40 ? 40 : room - 3;
    if (cells >= 5)
        append_bar(bar, sizeof bar, cells, share, progress->utf8);
    fprintf(progress->bar, "\r%s", pieces[0]);
    if (cells >= 5)
        fprintf(progress->bar, " %s%s%s%s%s", progress->utf8 ? "▕" : "[",
                progress->bar_colour ? "\033[32m" : "", bar, progress->bar_colour ? "\033[0m" : "",
                progress->utf8 ? "▏" : "]");
    fprintf(progress->bar, "%s\033[K", tail);
    fflush(progress->bar);
    progress->drawn = 1;
}

/* ---- lines ---- */

static int line_width(const dsc_cli_progress *progress) {
    int width = dsc_terminal_width(progress->lines);
    return width > 80 ? width : 80;
}

static void show_step(dsc_cli_progress *progress, const dsc_progress *e) {
    double now = dsc_cli_now();
    if (now - progress->last < (progress->bar ? bar_interval : progress->every))
        return;
    if (!progress->bar && progress->every <= 0)
        return;
    progress->last = now;
    if (progress->bar) {
        draw_bar(progress, e);
        return;
    }
    char text[256], loss[32], left[32], rate[40], use[32];
    int length = snprintf(text, sizeof text, "epoch %lld/%lld, step %lld/%lld: loss %s, %s, %s left",
                          (long long)e->epoch + 1, (long long)e->epochs, (long long)e->step_of_epoch,
                          (long long)e->epoch_steps, loss_text(e->loss, loss, sizeof loss),
                          rate_text(e, rate, sizeof rate), dsc_cli_duration(e->eta_s, left, sizeof left));
    use_text(e, use, sizeof use);
    if (length + (int)strlen(use) <= line_width(progress))
        strcat(text, use);
    write_line(progress, text);
}

/* The results of an evaluation besides the loss. */
static const char *accuracy_text(const dsc_progress *e, char *text, size_t size) {
    if (e->tokens > 0)
        snprintf(text, size, "perplexity %.4g, top-1 %.2f %%", exp(e->loss), 100 * e->top1);
    else if (e->positions > 1)
        snprintf(text, size, "pixel error %.2f %%", 100 * (1 - e->top1));
    else
        snprintf(text, size, "top-1 %.2f %%, top-5 %.2f %%", 100 * e->top1, 100 * e->top5);
    return text;
}

/* Prints the pending epoch, with its evaluation unless that is NULL, and in fewer words if the line would not
 * fit. */
static void show_epoch(dsc_cli_progress *progress, const dsc_progress *eval) {
    char text[400], head[128], loss[32], val[32], seconds[32], speed[96], rate[40], accuracy[80],
        full[160] = "", few[128] = "";
    const dsc_progress *e = &progress->epoch;
    progress->pending = 0;
    snprintf(head, sizeof head, "epoch %*lld/%lld: loss %s", e->epochs > 99 ? 3 : 2, (long long)e->epoch + 1,
             (long long)e->epochs, loss_text(e->loss, loss, sizeof loss));
    snprintf(speed, sizeof speed, "%s, %s", rate_text(e, rate, sizeof rate),
             dsc_cli_duration(progress->epoch_seconds, seconds, sizeof seconds));
    if (eval) {
        loss_text(eval->loss, val, sizeof val);
        accuracy_text(eval, accuracy, sizeof accuracy);
        snprintf(full, sizeof full, ", validation loss %s, %s", val, accuracy);
        if (eval->tokens == 0 && eval->positions > 1)
            snprintf(few, sizeof few, ", val %s, %s", val, accuracy);
        else
            snprintf(few, sizeof few, ", val %s, top-1 %.2f %%", val, 100 * eval->top1);
    }
    const int width = line_width(progress);
    if (snprintf(text, sizeof text, "%s%s, %s", head, full, speed) > width &&
        snprintf(text, sizeof text, "%s%s, %s", head, few, speed) > width)
        snprintf(text, sizeof text, "%s%s, %s", head, few, seconds);
    use_text(e, rate, sizeof rate);
    if ((int)(strlen(text) + strlen(rate)) <= width)
        strcat(text, rate);
    write_line(progress, text);
    progress->last = dsc_cli_now();
}

/* The length of the text up to the next ", ", the comma included; of the whole text when there is none. */
static int piece_length(const char *text) {
    const char *comma = strstr(text, ", ");
    return comma ? (int)(comma - text) + 1 : (int)strlen(text);
}

/* A line "label: text" of the description: the label in a column of its own, the text wrapped after commas. */
static void show_description(dsc_cli_progress *progress, const char *line) {
    const char *colon = strstr(line, ": "), *piece = colon ? colon + 2 : "";
    if (!colon) {
        write_line(progress, line);
        return;
    }
    int width = dsc_terminal_width(progress->lines), at = LABEL_COLUMNS;
    width = width > WIDEST ? WIDEST : width;
    erase_bar(progress);
    fprintf(progress->lines, "%s%.*s%s%*s", progress->colour ? "\033[1m" : "", (int)(colon - line), line,
            progress->colour ? "\033[0m" : "", LABEL_COLUMNS - (int)(colon - line), "");
    for (int length; *piece; piece += length + (piece[length] == ' ')) {
        length = piece_length(piece);
        if (at > LABEL_COLUMNS && at + 1 + length > width) {
            fprintf(progress->lines, "\n%*s", LABEL_COLUMNS, "");
            at = LABEL_COLUMNS;
        }
        at += fprintf(progress->lines, "%s%.*s", at > LABEL_COLUMNS ? " " : "", length, piece);
    }
    fputc('\n', progress->lines);
    fflush(progress->lines);
}

static void show_eval(dsc_cli_progress *progress, const dsc_progress *e) {
    char text[256], loss[32], accuracy[80];
    if (progress->pending) {
        show_epoch(progress, e);
        return;
    }
    snprintf(text, sizeof text, "validation at step %lld: loss %s, %s", (long long)e->step,
             loss_text(e->loss, loss, sizeof loss), accuracy_text(e, accuracy, sizeof accuracy));
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
        if (e->text)
            show_description(progress, e->text);
        break;
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
