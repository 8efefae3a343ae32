/* Prints what a checkpoint says about itself. The whole checkpoint is read, so that damage is found. */
#include "cli/info_checkpoint.h"

#include "cli/cli.h"
#include "cli/json_out.h"
#include "cli/support.h"
#include "descent/checkpoint.h"
#include "descent/train.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

enum { NAMES_SHOWN = 10 };

static const char *or_unknown(const char *text) {
    return *text ? text : "(not stored)";
}

static void print_numbers(const char *label, const double *numbers, int64_t count) {
    printf("%-14s", label);
    for (int64_t i = 0; i < count; i++)
        printf("%s%g", i ? " " : "", numbers[i]);
    printf("\n");
}

/* 1 for data of images with masks, whose samples are parts of images that keep their size. */
static int has_masks(const dsc_checkpoint_info *c) {
    return strncmp(c->data, "masks:", strlen("masks:")) == 0;
}

static void print_input(const dsc_checkpoint_info *c) {
    if (c->height < 1)
        return;
    if (dsc_zoo_takes_tokens(c->model)) {
        printf("input         %lld tokens\n", (long long)c->height);
        return;
    }
    printf("input         %lld x %lld x %lld", (long long)c->height, (long long)c->width,
           (long long)c->channels);
    if (has_masks(c))
        printf(", parts of images");
    else if (c->resize > 0)
        printf(", the middle of images whose shorter side is scaled to %lld", (long long)c->resize);
    printf("\n");
}

/* Prints whether tokens are masked, and by which, and the loss, unless it is cross-entropy, as of nearly all models. */
static void print_task(const dsc_checkpoint_info *c) {
    if (c->mask > 0 && c->mask_token >= 0)
        printf("mask          %g of the tokens, by token %lld\n", c->mask, (long long)c->mask_token);
    else if (c->mask > 0)
        printf("mask          %g of the tokens, by a token after those of the data\n", c->mask);
    if (strcmp(c->loss, dsc_loss_name(DSC_LOSS_CROSS_ENTROPY)) != 0)
        printf("loss          %s\n", c->loss);
}

static void print_classes(const dsc_checkpoint_info *c) {
    if (c->classes < 0)
        return;
    if (dsc_zoo_takes_tokens(c->model)) {
        printf("vocabulary    %lld%s\n", (long long)c->classes,
               c->vocabulary > 0 ? ", as the run asked for" : "");
        return;
    }
    printf("classes       %lld",
           (long long)(c->classes == 1 ? 2 : c->classes)); /* one output tells two apart */
    for (int64_t i = 0; i < c->class_name_count && i < NAMES_SHOWN; i++)
        printf("%s %s", i ? "," : ":", c->class_names[i]);
    printf("%s\n", c->class_name_count > NAMES_SHOWN ? ", ..." : "");
}

static void print_text(const dsc_checkpoint_info *c) {
    char number[32];
    printf("checkpoint    %s\n", c->path);
    printf("model         %s\n", or_unknown(c->model));
    printf("data          %s\n", or_unknown(c->data));
    if (c->step >= 0)
        printf("trained       %lld step%s, %lld epoch%s%s%s\n", (long long)c->step, c->step == 1 ? "" : "s",
               (long long)c->epoch, c->epoch == 1 ? "" : "s", *c->version ? ", with descent " : "",
               c->version);
    print_input(c);
    print_classes(c);
    print_task(c);
    if (c->tokenizer)
        printf("tokenizer     %s, %s tokens\n", dsc_tokenizer_kind(c->tokenizer),
               dsc_cli_grouped(dsc_tokenizer_vocabulary(c->tokenizer), number, sizeof number));
    if (c->mean) {
        print_numbers("mean", c->mean, c->channels);
        print_numbers("std", c->std, c->channels);
    }
    printf("tensors       %lld with %s numbers, %.1f MB\n", (long long)c->tensors,
           dsc_cli_grouped(c->numbers, number, sizeof number), (double)c->bytes / 1e6);
    printf("check sums    %s\n", c->has_sums ? "of all tensors, and they match" : "none");
    if (c->state_path)
        printf("training      can continue: %s, %s, %lld %s\n", or_unknown(c->optimizer),
               or_unknown(c->consensus), (long long)c->ranks, c->ranks == 1 ? "rank" : "ranks");
    else
        printf("training      cannot continue: there is no state file beside it\n");
}

/* null for "" and -1, which mean that the file does not state the value. */
static json_t *text_json(const char *text) {
    return *text ? dsc_cli_json_text(text) : json_null();
}

static json_t *count_json(int64_t count) {
    return count >= 0 ? json_integer((json_int_t)count) : json_null();
}

static json_t *numbers_json(const double *numbers, int64_t count) {
    json_t *array = numbers ? json_array() : json_null();
    for (int64_t i = 0; numbers && i < count; i++)
        json_array_append_new(array, json_real(numbers[i]));
    return array;
}

static json_t *describe(const dsc_checkpoint_info *c) {
    char seed[32];
    json_t *names = c->class_name_count > 0 ? json_array() : json_null();
    for (int64_t i = 0; i < c->class_name_count; i++)
        json_array_append_new(names, json_string(c->class_names[i]));
    snprintf(seed, sizeof seed, "%llu", (unsigned long long)c->seed);
    json_t *object =
        json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "checkpoint", text_json(c->path),
                  "version", text_json(c->version), "model", text_json(c->model), "data", text_json(c->data),
                  "seed", text_json(c->has_seed ? seed : ""), "step", count_json(c->step), "epoch",
                  count_json(c->epoch), "classes", count_json(c->classes), "height", count_json(c->height),
                  "width", count_json(c->width), "channels", count_json(c->channels));
    json_t *rest =
        json_pack("{s:o, s:o, s:o, s:o, s:I, s:I, s:I, s:b, s:o, s:o, s:o, s:o}", "class_names", names,
                  "resize", count_json(c->resize), "mean", numbers_json(c->mean, c->channels), "std",
                  numbers_json(c->std, c->channels), "tensors", (json_int_t)c->tensors, "numbers",
                  (json_int_t)c->numbers, "bytes", (json_int_t)c->bytes, "check_sums", c->has_sums, "state",
                  text_json(c->state_path ? c->state_path : ""), "ranks", count_json(c->ranks), "optimizer",
                  text_json(c->optimizer), "consensus", text_json(c->consensus));
    if (object && rest)
        json_object_update(object, rest);
    json_decref(rest);
    rest = json_pack("{s:o, s:f, s:o, s:o, s:s}", "tokenizer",
                     text_json(c->tokenizer ? dsc_tokenizer_kind(c->tokenizer) : ""), "mask", c->mask,
                     "mask_token", count_json(c->mask_token), "vocabulary", count_json(c->vocabulary), "loss",
                     c->loss);
    if (object && rest)
        json_object_update(object, rest);
    json_decref(rest);
    return object;
}

dsc_status dsc_info_checkpoint_print(const char *checkpoint, int json) {
    dsc_checkpoint_info *c = NULL;
    DSC_CLI_TRY(dsc_checkpoint_read_info(checkpoint, &c));
    dsc_status status = dsc_checkpoint_verify(c->path);
    if (status == DSC_OK && json) {
        json_t *object = describe(c);
        json_dumpf(object, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
        printf("\n");
        json_decref(object);
    } else if (status == DSC_OK) {
        print_text(c);
    }
    dsc_checkpoint_info_free(&c);
    return status;
}
