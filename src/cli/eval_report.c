/* Classes, confusions and calibration of an evaluation. */
#include "cli/eval_report.h"

#include "cli/cli.h"

#include <stdio.h>
#include <string.h>

enum { SHOWN = 5, LISTED = 10, NAME_SIZE = 64, NAME_WIDTH = 24 };

/* Images of class `label` that were taken for class `taken`. */
typedef struct confusion {
    int64_t label, taken, images;
} confusion;

/* Counts of one class. */
typedef struct class_sums {
    int64_t images, right, taken; /* images of the class; of these, right ones; images taken for the class */
    int64_t other;                /* the class that it is most often taken for, -1: none */
} class_sums;

static const char *name_of(const dsc_eval_report *r, int64_t label, char text[NAME_SIZE]) {
    if (r->class_names)
        snprintf(text, NAME_SIZE, "%s", r->class_names[label]);
    else
        snprintf(text, NAME_SIZE, "class %lld", (long long)label);
    return text;
}

static class_sums sum_class(const dsc_eval_report *r, int64_t label) {
    class_sums s = {.other = -1};
    const int64_t *row = r->confusion + label * r->classes;
    for (int64_t i = 0; i < r->classes; i++) {
        s.images += row[i];
        s.taken += r->confusion[i * r->classes + label];
        if (i != label && row[i] > 0 && (s.other < 0 || row[i] > row[s.other]))
            s.other = i;
    }
    s.right = row[label];
    return s;
}

static double percent(int64_t part, int64_t all) {
    return all > 0 ? 100 * (double)part / (double)all : 0;
}

/* The most frequent confusions, at most LISTED; returns how many. */
static int find_confusions(const dsc_eval_report *r, confusion out[LISTED]) {
    int count = 0;
    for (int64_t label = 0; label < r->classes; label++)
        for (int64_t taken = 0; taken < r->classes; taken++) {
            int64_t images = r->confusion[label * r->classes + taken];
            if (label == taken || images == 0 || (count == LISTED && images <= out[LISTED - 1].images))
                continue;
            int place = count < LISTED ? count++ : LISTED - 1;
            for (; place > 0 && out[place - 1].images < images; place--)
                out[place] = out[place - 1];
            out[place] = (confusion){label, taken, images};
        }
    return count;
}

/* The classes with the lowest accuracy, those without images left out. */
static int find_lowest(const dsc_eval_report *r, int64_t out[SHOWN]) {
    double share[SHOWN];
    int count = 0;
    for (int64_t label = 0; label < r->classes; label++) {
        class_sums s = sum_class(r, label);
        double own = percent(s.right, s.images);
        if (s.images == 0 || (count == SHOWN && own >= share[SHOWN - 1]))
            continue;
        int place = count < SHOWN ? count++ : SHOWN - 1;
        for (; place > 0 && share[place - 1] > own; place--) {
            out[place] = out[place - 1];
            share[place] = share[place - 1];
        }
        out[place] = label;
        share[place] = own;
    }
    return count;
}

/* ---- masks ---- */

/* With A the pixels of a class and B those taken for it: Dice is 2 |A and B| / (|A| + |B|), and the overlap is |A and
 * B| / |A or B|. Both are 1 for a class without such pixels. */
static double dice_of(const class_sums *s) {
    return s->images + s->taken > 0 ? 2 * (double)s->right / (double)(s->images + s->taken) : 1;
}

static double overlap_of(const class_sums *s) {
    int64_t either = s->images + s->taken - s->right;
    return either > 0 ? (double)s->right / (double)either : 1;
}

void dsc_eval_report_masks(const dsc_eval_report *r, double *dice, double *overlap) {
    *dice = *overlap = 0;
    for (int64_t i = 0; r->confusion && i < r->classes; i++) {
        class_sums s = sum_class(r, i);
        *dice += dice_of(&s) / (double)r->classes;
        *overlap += overlap_of(&s) / (double)r->classes;
    }
}

void dsc_eval_report_print_masks(const dsc_eval_report *r) {
    char name[NAME_SIZE];
    if (!r->confusion)
        return;
    printf("%-*s  %10s  %8s  %8s  %9s  %9s\n", NAME_WIDTH, "class", "pixels", "Dice", "IoU", "accuracy",
           "precision");
    for (int64_t i = 0; i < r->classes; i++) {
        class_sums s = sum_class(r, i);
        printf("%-*s  %10lld  %8.4f  %8.4f  %7.2f %%  %7.2f %%\n", NAME_WIDTH, name_of(r, i, name),
               (long long)s.images, dice_of(&s), overlap_of(&s), percent(s.right, s.images),
               percent(s.right, s.taken));
    }
}

void dsc_eval_report_print(const dsc_eval_report *r) {
    confusion confusions[LISTED];
    int64_t lowest[SHOWN];
    char a[NAME_SIZE], b[NAME_SIZE];
    printf("calibration error %.2f %% (%d bins)\n", 100 * r->calibration_error, r->bins);
    if (!r->confusion)
        return;
    int count = find_lowest(r, lowest);
    for (int i = 0; i < count; i++) {
        class_sums s = sum_class(r, lowest[i]);
        printf("%s%s: %.2f %% of %lld images\n", i ? "  " : "lowest accuracy:\n  ", name_of(r, lowest[i], a),
               percent(s.right, s.images), (long long)s.images);
    }
    count = find_confusions(r, confusions);
    for (int i = 0; i < count && i < SHOWN; i++)
        printf("%s%s taken for %s: %lld images\n", i ? "  " : "most frequent confusions:\n  ",
               name_of(r, confusions[i].label, a), name_of(r, confusions[i].taken, b),
               (long long)confusions[i].images);
}

void dsc_eval_report_print_classes(const dsc_eval_report *r, const char *what) {
    char name[NAME_SIZE], other[NAME_SIZE], many[16];
    if (!r->confusion)
        return;
    snprintf(many, sizeof many, "%ss", what);
    printf("%-*s  %8s  %9s  %9s  %s\n", NAME_WIDTH, "class", many, "accuracy", "precision",
           "most often taken for");
    for (int64_t i = 0; i < r->classes; i++) {
        class_sums s = sum_class(r, i);
        printf("%-*s  %8lld  %7.2f %%  %7.2f %%  %s\n", NAME_WIDTH, name_of(r, i, name), (long long)s.images,
               percent(s.right, s.images), percent(s.right, s.taken),
               s.other >= 0 ? name_of(r, s.other, other) : "-");
    }
}

void dsc_eval_report_print_confusion(const dsc_eval_report *r, const char *what) {
    char name[NAME_SIZE];
    if (!r->confusion)
        return;
    printf("rows: class of the %s; columns: what it is taken for, in the same order\n", what);
    for (int64_t i = 0; i < r->classes; i++) {
        printf("%-*s", NAME_WIDTH, name_of(r, i, name));
        for (int64_t k = 0; k < r->classes; k++)
            printf(" %5lld", (long long)r->confusion[i * r->classes + k]);
        printf("\n");
    }
}

/* ---- JSON ---- */

/* The class's name, or its number where it has none. */
static json_t *label_json(const dsc_eval_report *r, int64_t label) {
    json_t *text = r->class_names ? json_string(r->class_names[label]) : NULL;
    return text ? text : json_integer(label);
}

static json_t *classes_json(const dsc_eval_report *r) {
    json_t *list = json_array();
    for (int64_t i = 0; i < r->classes; i++) {
        class_sums s = sum_class(r, i);
        json_array_append_new(
            list,
            json_pack("{s:o, s:I, s:I, s:I, s:o, s:o, s:f, s:f}", "class", label_json(r, i), "images",
                      (json_int_t)s.images, "right", (json_int_t)s.right, "predicted", (json_int_t)s.taken,
                      "accuracy", s.images > 0 ? json_real(percent(s.right, s.images) / 100) : json_null(),
                      "precision", s.taken > 0 ? json_real(percent(s.right, s.taken) / 100) : json_null(),
                      "dice", dice_of(&s), "iou", overlap_of(&s)));
    }
    return list;
}

static json_t *confusions_json(const dsc_eval_report *r) {
    confusion confusions[LISTED];
    json_t *list = json_array();
    int count = find_confusions(r, confusions);
    for (int i = 0; i < count; i++)
        json_array_append_new(list, json_pack("{s:o, s:o, s:I}", "class", label_json(r, confusions[i].label),
                                              "taken_for", label_json(r, confusions[i].taken), "images",
                                              (json_int_t)confusions[i].images));
    return list;
}

static json_t *matrix_json(const dsc_eval_report *r) {
    json_t *rows = json_array();
    for (int64_t i = 0; i < r->classes; i++) {
        json_t *row = json_array();
        for (int64_t k = 0; k < r->classes; k++)
            json_array_append_new(row, json_integer((json_int_t)r->confusion[i * r->classes + k]));
        json_array_append_new(rows, row);
    }
    return rows;
}

json_t *dsc_eval_report_json(const dsc_eval_report *r) {
    json_t *bins = json_array();
    for (int i = 0; i < r->bins; i++)
        json_array_append_new(bins,
                              json_pack("{s:I, s:f, s:f}", "images", (json_int_t)r->bin_images[i], "accuracy",
                                        r->bin_accuracy[i], "confidence", r->bin_confidence[i]));
    json_t *object =
        json_pack("{s:f, s:o}", "calibration_error", r->calibration_error, "calibration_bins", bins);
    if (object && r->confusion) {
        json_object_set_new(object, "classes", classes_json(r));
        json_object_set_new(object, "confusions", confusions_json(r));
        json_object_set_new(object, "confusion_matrix", matrix_json(r));
    }
    return object;
}
