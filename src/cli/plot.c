/* A plot is a field of character cells, each 2 x 4 dots (the dots of a braille character). Curves are drawn
 * into the dots; the points themselves get a mark over them. In ASCII a cell with any dot is a full stop. */
#include "cli/plot.h"
#include "cli/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MARKS = 10, SEVERAL = MARKS + 1, LABEL_WIDTH = 8, LABEL_ROWS = 4, MARKED_POINTS = 16 };

static const char *const unicode_marks[] = {"", "●", "○", "▲", "△", "■", "□", "▼", "▽", "★", "☆", "◆"};
static const char *const ascii_marks[] = {"", "o", "x", "+", "%", "@", "=", "#", "&", "$", "~", "*"};

typedef struct field {
    int cols, rows;
    unsigned char *dots;  /* braille bits per cell */
    unsigned char *marks; /* number of the mark, 0: none */
    double x_low, x_high, y_low, y_high;
} field;

static int finite_point(const dsc_plot_series *s, int64_t i) {
    return isfinite(s->x[i]) && isfinite(s->y[i]);
}

/* Sets the ranges of x and y; returns the number of points. */
static int64_t find_ranges(field *f, const dsc_plot_series *series, int64_t count) {
    int64_t points = 0;
    for (int64_t k = 0; k < count; k++)
        for (int64_t i = 0; i < series[k].count; i++) {
            if (!finite_point(&series[k], i))
                continue;
            double x = series[k].x[i], y = series[k].y[i];
            if (points++ == 0) {
                f->x_low = f->x_high = x;
                f->y_low = f->y_high = y;
            }
            f->x_low = fmin(f->x_low, x);
            f->x_high = fmax(f->x_high, x);
            f->y_low = fmin(f->y_low, y);
            f->y_high = fmax(f->y_high, y);
        }
    if (f->x_high == f->x_low)
        f->x_high = f->x_low + 1;
    if (f->y_high == f->y_low) {
        f->y_low -= 0.5;
        f->y_high += 0.5;
    }
    return points;
}

/* Widens the range of y so that the labels, one every LABEL_ROWS rows from the lowest, are round numbers:
 * steps of 1, 2, 2.5 or 5 times a power of ten. Ranges too large or too small for that stay as they are. */
static void round_range(field *f) {
    static const double factors[] = {1, 2, 2.5, 5, 10, 20, 25, 50};
    double steps = (double)(f->rows - 1) / LABEL_ROWS;
    double power = pow(10, floor(log10((f->y_high - f->y_low) / steps)));
    for (int i = 0; i < 8 && isfinite(power) && power > 0; i++) {
        double step = factors[i] * power, low = floor(f->y_low / step) * step;
        if (low + steps * step >= f->y_high && low <= f->y_low) {
            f->y_low = low;
            f->y_high = low + steps * step;
            return;
        }
    }
}

/* Position of the value between low and high, in [0, 1]. Halved first, so that no finite range overflows. */
static double share_of(double value, double low, double high) {
    double share = (value / 2 - low / 2) / (high / 2 - low / 2);
    return share >= 0 && share <= 1 ? share : 0; /* NaN where the range is lost in rounding */
}

static int dot_column(const field *f, double x) {
    return (int)lround(share_of(x, f->x_low, f->x_high) * (2 * f->cols - 1));
}

static int dot_row(const field *f, double y) {
    return (int)lround((1 - share_of(y, f->y_low, f->y_high)) * (4 * f->rows - 1));
}

static void set_dot(field *f, int column, int row) {
    static const unsigned char bits[4][2] = {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};
    f->dots[row / 4 * f->cols + column / 2] |= bits[row % 4][column % 2];
}

static void draw_line(field *f, int c0, int r0, int c1, int r1) {
    int steps = abs(c1 - c0) > abs(r1 - r0) ? abs(c1 - c0) : abs(r1 - r0);
    for (int i = 0; i <= steps; i++) {
        double t = steps ? (double)i / steps : 0;
        set_dot(f, (int)lround(c0 + t * (c1 - c0)), (int)lround(r0 + t * (r1 - r0)));
    }
}

static void set_mark(field *f, int column, int row, int mark) {
    unsigned char *cell = &f->marks[row / 4 * f->cols + column / 2];
    *cell = (unsigned char)(*cell == 0 || *cell == mark ? mark : SEVERAL);
}

static void draw_series(field *f, const dsc_plot_series *s, int mark) {
    int64_t every = 1 + s->count / MARKED_POINTS; /* marks on all points would cover the curve */
    int last_column = -1, last_row = 0;
    for (int64_t i = 0; i < s->count; i++) {
        if (!finite_point(s, i))
            continue;
        int column = dot_column(f, s->x[i]), row = dot_row(f, s->y[i]);
        if (last_column >= 0)
            draw_line(f, last_column, last_row, column, row);
        if (i % every == 0 || i == s->count - 1)
            set_mark(f, column, row, mark);
        last_column = column;
        last_row = row;
    }
}

static void print_cell(FILE *out, unsigned char dots, unsigned char mark, int utf8) {
    if (mark)
        fputs(utf8 ? unicode_marks[mark] : ascii_marks[mark], out);
    else if (!dots)
        fputc(' ', out);
    else if (!utf8)
        fputc('.', out);
    else /* U+2800 + dots in UTF-8 */
        fprintf(out, "\xe2%c%c", 0xa0 + (dots >> 6), 0x80 + (dots & 0x3f));
}

static void print_field(FILE *out, const field *f, int utf8) {
    for (int row = 0; row < f->rows; row++) {
        int above = f->rows - 1 - row;
        double value = f->y_low + (f->y_high / (f->rows - 1) - f->y_low / (f->rows - 1)) * above;
        if (above % LABEL_ROWS == 0)
            fprintf(out, "%*.4g %s", LABEL_WIDTH - 1, value, utf8 ? "┤" : "|");
        else
            fprintf(out, "%*s%s", LABEL_WIDTH, "", utf8 ? "│" : "|");
        for (int column = 0; column < f->cols; column++) {
            int64_t cell = (int64_t)row * f->cols + column;
            print_cell(out, f->dots[cell], f->marks[cell], utf8);
        }
        fputc('\n', out);
    }
}

static void print_axis(FILE *out, const field *f, const dsc_plot_options *options) {
    const char *label = options->x_label;
    const int utf8 = options->utf8;
    const double low = options->x_is_log10 ? pow(10, f->x_low) : f->x_low;
    const double high = options->x_is_log10 ? pow(10, f->x_high) : f->x_high;
    char left[32], right[32];
    fprintf(out, "%*s%s", LABEL_WIDTH, "", utf8 ? "└" : "+");
    for (int i = 0; i < f->cols; i++)
        fputs(utf8 ? "─" : "-", out);
    int left_length = snprintf(left, sizeof left, "%.5g", low);
    int right_length = snprintf(right, sizeof right, "%.5g", high);
    int label_length = (int)strlen(label);
    int gap = f->cols - left_length - right_length - label_length;
    if (gap < 2) {
        fprintf(out, "\n%*s%s %s %s\n", LABEL_WIDTH + 1, "", left, label, right);
        return;
    }
    fprintf(out, "\n%*s%s%*s%s%*s%s\n", LABEL_WIDTH + 1, "", left, gap / 2, "", label, gap - gap / 2, "",
            right);
}

static void print_legend(FILE *out, const dsc_plot_series *series, int64_t count, const field *f, int utf8) {
    const char *const *marks = utf8 ? unicode_marks : ascii_marks;
    for (int64_t k = 0; k < count; k++)
        fprintf(out, "%*s%s %s\n", LABEL_WIDTH + 1, "", marks[1 + k % MARKS], series[k].label);
    if (memchr(f->marks, SEVERAL, (size_t)f->cols * (size_t)f->rows))
        fprintf(out, "%*s%s several\n", LABEL_WIDTH + 1, "", marks[SEVERAL]);
}

dsc_status dsc_plot_draw(FILE *out, const dsc_plot_series *series, int64_t count,
                         const dsc_plot_options *options) {
    field f = {.cols = options->width - LABEL_WIDTH - 1, .rows = options->height};
    if (f.cols < 8)
        f.cols = 8;
    if (f.rows < 2)
        f.rows = 2;
    fprintf(out, "%*s%s\n", LABEL_WIDTH + 1, "", options->title);
    if (find_ranges(&f, series, count) == 0) {
        fprintf(out, "%*s(nothing to plot yet)\n", LABEL_WIDTH + 1, "");
        return DSC_OK;
    }
    round_range(&f);
    int64_t cells = (int64_t)f.cols * f.rows;
    DSC_CLI_TRY(dsc_cli_alloc(2 * cells, 1, &f.dots));
    f.marks = f.dots + cells;
    for (int64_t k = 0; k < count; k++)
        draw_series(&f, &series[k], (int)(1 + k % MARKS));
    print_field(out, &f, options->utf8);
    print_axis(out, &f, options);
    print_legend(out, series, count, &f, options->utf8);
    dsc_cli_free(&f.dots);
    return DSC_OK;
}
