/* Reading metrics.jsonl, plots, small texts. */
#include "test.h"

#include "base/rng.h"
#include "cli/cli.h"
#include "cli/plot.h"
#include "cli/report_parts.h"

#include <math.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static const char good[] =
    "{\"kind\":\"run\",\"version\":\"0.1.0\",\"ranks\":2,\"config\":{\"model\":\"lenet\",\"epochs\":3}}\n"
    "{\"kind\":\"step\",\"step\":1,\"epoch\":0,\"time_s\":0.5,\"loss\":2.3,\"lr\":0.1,\"images_per_s\":100.0}"
    "\n"
    "{\"kind\":\"epoch\",\"epoch\":0,\"step\":10,\"time_s\":1.0,\"loss\":2.0,\"lr\":0.1,\"images_per_s\":110."
    "0}\n"
    "{\"kind\":\"eval\",\"epoch\":0,\"step\":10,\"time_s\":1.1,\"loss\":1.9,\"top1\":0.25,\"top5\":0.75}\n"
    "{\"kind\":\"epoch\",\"epoch\":1,\"step\":20,\"time_s\":2.0,\"loss\":1.5,\"lr\":0.1,\"images_per_s\":120."
    "0}\n"
    "{\"kind\":\"eval\",\"epoch\":1,\"step\":20,\"time_s\":2.1,\"loss\":1.4,\"top1\":0.5,\"top5\":0.875}\n"
    "{\"kind\":\"eval\",\"epoch\":2,\"step\":30,\"time_s\":3.1,\"loss\":1.45,\"top1\":0.375,\"top5\":0.875}\n"
    "{\"kind\":\"checkpoint\",\"step\":30,\"epoch\":2,\"time_s\":3.2,\"file\":\"checkpoint-30.safetensors\"}"
    "\n"
    "{\"kind\":\"end\",\"status\":\"done\",\"steps\":30,\"epochs\":3,\"time_s\":3.25,\"loss\":1.2,\"images_"
    "per_s\":115.0,\"mfu\":0.4321}\n";

static dsc_status read_text(const char *text, size_t length, dsc_runlog **out) {
    FILE *stream = tmpfile();
    assert_non_null(stream);
    assert_int_equal(fwrite(text, 1, length, stream), length);
    rewind(stream);
    dsc_status status = dsc_runlog_read_stream("run-a", "run-a/metrics.jsonl", stream, out);
    fclose(stream);
    return status;
}

static double value_of(const dsc_runlog *log, int which, int64_t row, const char *key) {
    const dsc_runlog_table *table = &log->tables[which];
    int64_t column = dsc_runlog_column(table, key);
    assert_true(row < table->rows && column >= 0);
    return table->values[row * table->columns + column];
}

static void test_runlog(void **state) {
    (void)state;
    dsc_runlog *log = NULL;
    assert_ok(read_text(good, sizeof good - 1, &log));
    assert_string_equal(log->name, "run-a");
    assert_string_equal(log->model, "lenet");
    assert_int_equal(log->ranks, 2);
    assert_int_equal(log->epochs, 2);
    assert_int_equal(log->steps, 30);
    assert_int_equal(log->tables[DSC_RUNLOG_EVALS].rows, 3);
    assert_int_equal(log->tables[DSC_RUNLOG_STEPS].rows, 1);
    assert_int_equal(log->tables[DSC_RUNLOG_EPOCHS].rows, 2);
    assert_int_equal(log->bad_lines, 0);
    assert_string_equal(log->status, "done");
    assert_string_equal(json_string_value(dsc_runlog_config(log, "model")), "lenet");
    assert_null(dsc_runlog_config(log, "kfac.damping"));
    assert_true(log->best_top1 == 50 && log->loss == 1.45 && log->images_per_s == 115 && log->mfu == 43.21 &&
                log->seconds == 3.25);
    assert_true(log->best_epoch == 2 && log->top1 == 37.5);
    assert_true(value_of(log, DSC_RUNLOG_EVALS, 0, "epoch") == 1 &&
                value_of(log, DSC_RUNLOG_EVALS, 2, "epoch") == 3 &&
                value_of(log, DSC_RUNLOG_EVALS, 2, "top1") == 0.375 &&
                value_of(log, DSC_RUNLOG_EVALS, 2, "time_s") == 3.1);
    assert_true(value_of(log, DSC_RUNLOG_STEPS, 0, "lr") == 0.1);
    assert_true(isnan(value_of(log, DSC_RUNLOG_STEPS, 0, "nu")));
    dsc_runlog_destroy(&log);
    assert_null(log);
    dsc_runlog_destroy(&log);
}

/* A run that was killed after epoch 2 and resumed from the checkpoint of epoch 1 evaluates epoch 2 again. */
static void test_runlog_resumed(void **state) {
    (void)state;
    char text[4096];
    dsc_runlog *log = NULL;
    int length = snprintf(text, sizeof text, "%s%s", good,
                          "{\"kind\":\"run\",\"ranks\":4}\n"
                          "{\"kind\":\"eval\",\"epoch\":1,\"loss\":1.0,\"top1\":0.625,\"top5\":1}\n");
    assert_ok(read_text(text, (size_t)length, &log));
    assert_int_equal(log->ranks, 4);
    assert_int_equal(log->tables[DSC_RUNLOG_EVALS].rows, 2);
    assert_string_equal(log->status, ""); /* the run has not ended */
    assert_true(log->top1 == 62.5 && log->best_top1 == 62.5 && log->loss == 1.0);
    dsc_runlog_destroy(&log);
}

/* The average of the weights counts for the best accuracy, and so does the time to a target. */
static void test_runlog_ema_and_target(void **state) {
    (void)state;
    static const char text[] = "{\"kind\":\"eval\",\"epoch\":0,\"time_s\":1,\"loss\":2,\"top1\":0.25,\"ema_"
                               "loss\":1,\"ema_top1\":0.5}\n"
                               "{\"kind\":\"eval\",\"epoch\":1,\"time_s\":2,\"loss\":2,\"top1\":0.375,\"ema_"
                               "loss\":null,\"ema_top1\":0.75}\n"
                               "{\"kind\":\"eval\",\"epoch\":2,\"time_s\":3,\"loss\":null,\"top1\":0.875,"
                               "\"ema_loss\":1,\"ema_top1\":0.125}\n"
                               "{\"kind\":\"end\",\"status\":\"done\",\"target_s\":2.5}\n";
    static const char again[] = "{\"kind\":\"run\",\"step\":5}\n{\"kind\":\"end\",\"target_s\":null}\n";
    dsc_runlog *log = NULL;
    assert_ok(read_text(text, sizeof text - 1, &log));
    assert_true(log->best_top1 == 50 && log->best_epoch == 1 && log->top1 == 87.5 && log->ema_top1 == 12.5);
    assert_true(log->target_s == 2.5);
    assert_true(dsc_runlog_time_to(log, 25) == 1 && dsc_runlog_time_to(log, 50) == 1 &&
                isnan(dsc_runlog_time_to(log, 50.5)));
    dsc_runlog_destroy(&log);
    char both[2048];
    assert_ok(read_text(both, (size_t)snprintf(both, sizeof both, "%s%s", text, again), &log));
    assert_true(isnan(log->target_s)); /* of a run that went on */
    dsc_runlog_destroy(&log);
}

/* A `run` line that continues from step 14 drops the lines of later steps; steps have fractions of epochs. */
static void test_runlog_from_checkpoint(void **state) {
    (void)state;
    char text[4096];
    dsc_runlog *log = NULL;
    int length = snprintf(text, sizeof text, "%s%s", good,
                          "{\"kind\":\"run\",\"ranks\":2,\"step\":14,\"steps_per_epoch\":10}\n"
                          "{\"kind\":\"step\",\"step\":15,\"epoch\":1,\"loss\":1}\n"
                          "{\"kind\":\"step\",\"step\":16,\"epoch\":1,\"loss\":2}\n"
                          "{\"kind\":\"step\",\"step\":16,\"epoch\":1,\"loss\":3}\n"
                          "{\"kind\":\"eval\",\"step\":16,\"epoch\":1,\"loss\":1.0,\"top1\":0.75}\n");
    assert_ok(read_text(text, (size_t)length, &log));
    assert_int_equal(log->tables[DSC_RUNLOG_EVALS].rows, 2);
    assert_int_equal(log->tables[DSC_RUNLOG_EPOCHS].rows, 1);
    assert_int_equal(log->tables[DSC_RUNLOG_STEPS].rows, 3);
    assert_true(value_of(log, DSC_RUNLOG_STEPS, 1, "epoch") == 1.5 &&
                value_of(log, DSC_RUNLOG_STEPS, 2, "loss") == 3 &&
                value_of(log, DSC_RUNLOG_EVALS, 1, "epoch") == 1.6);
    dsc_runlog_destroy(&log);
}

/* How a run ended. */
static void test_runlog_status(void **state) {
    (void)state;
    static const char *const ends[][3] = {
        {"interrupted", "null", "stopped"},
        {"failed", "\"the loss of step 3 is not a number and nothing was updated\"", "diverged"},
        {"failed", "\"rank 1 was lost\"", "failed"},
        {"word\\u001b[31m", "7", "word?[31m"},
    };
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        char text[256];
        dsc_runlog *log = NULL;
        int length = snprintf(text, sizeof text, "{\"kind\":\"end\",\"status\":\"%s\",\"error\":%s}\n",
                              ends[i][0], ends[i][1]);
        assert_ok(read_text(text, (size_t)length, &log));
        assert_string_equal(log->status, ends[i][2]);
        dsc_runlog_destroy(&log);
    }
}

static const char kfac[] =
    "{\"kind\":\"kfac\",\"step\":5,\"nu\":0.5,\"loads\":[{\"share\":0.75},{\"share\":0.25}],\"layers\":"
    "[{\"name\":\"a\",\"cosine\":0.5,\"a_min\":null},{\"name\":7,\"condition\":9,\"nu\":0.125}]}\n"
    "{\"kind\":\"kfac\",\"step\":10,\"nu\":1,\"layers\":[{\"name\":\"a\",\"cosine\":0.25}]}\n"
    "{\"kind\":\"kfac\",\"step\":10,\"nu\":1,\"layers\":[{\"cosine\":0.75},3]}\n"
    "{\"kind\":\"load\",\"step\":10,\"ranks\":[{\"data\":1},{\"gradients\":1000}]}\n";

/* Layers and loads of K-FAC have a row for every line; lists of another length leave it empty. */
static void test_runlog_kfac(void **state) {
    (void)state;
    dsc_runlog *log = NULL;
    assert_ok(read_text(kfac, sizeof kfac - 1, &log));
    const dsc_runlog_table *layers = &log->tables[DSC_RUNLOG_LAYERS],
                           *loads = &log->tables[DSC_RUNLOG_SOLVES];
    assert_int_equal(log->tables[DSC_RUNLOG_KFAC].rows, 2);
    assert_true(log->layers == 2 && layers->rows == 2 && layers->columns == 2 * DSC_RUNLOG_LAYER_VALUES);
    assert_true(log->solves == 2 && loads->rows == 2 && loads->columns == 2 * DSC_RUNLOG_SOLVE_VALUES);
    assert_true(layers->values[0] == 0.5 && isnan(layers->values[1]) && layers->values[12] == 9);
    assert_true(layers->values[14] == 0.75 && isnan(layers->values[21]));
    /* A layer has its own nu, or that of all layers. */
    assert_true(layers->values[6] == 0.5 && layers->values[13] == 0.125 && layers->values[20] == 1);
    assert_true(loads->values[1] == 0.75 && loads->values[4] == 0.25 && isnan(loads->values[6]));
    assert_string_equal(json_string_value(json_array_get(log->layer_names, 0)), "a");
    assert_true(json_is_null(json_array_get(log->layer_names, 1)));
    dsc_runlog_destroy(&log);
}

/* Messages of alarms are kept once each, up to four. */
static void test_runlog_alarms(void **state) {
    (void)state;
    char text[4096];
    dsc_runlog *log = NULL;
    int length = snprintf(text, sizeof text, "%s", good);
    static const char *const messages[] = {"\"a\"", "\"b\"", "\"a\"", "7", "\"c\"", "\"d\"", "\"e\""};
    for (int i = 0; i < 7; i++)
        length += snprintf(text + length, sizeof text - (size_t)length,
                           "{\"kind\":\"alarm\",\"step\":%d,\"message\":%s}\n", 40 + i, messages[i]);
    assert_ok(read_text(text, (size_t)length, &log));
    assert_int_equal(log->bad_lines, 0);
    assert_int_equal(log->alarm_count, 4);
    assert_string_equal(log->alarms[1], "b");
    assert_string_equal(log->alarms[3], "d");
    dsc_runlog_destroy(&log);
}

static void test_runlog_damaged(void **state) {
    (void)state;
    dsc_runlog *log = NULL;
    const char *text = "{\"kind\":\"run\",\"ranks\":1}\nnonsense\n{\"kind\":\"eval\"}\n[1]\n{\"loss\":1}\n"
                       "{\"kind\":\"step\",\"step\":-5,\"loss\":\"x\",\"time_s\":null}\n{\"kind\":\"st";
    assert_ok(read_text(text, strlen(text), &log));
    assert_int_equal(log->lines, 2);
    assert_int_equal(log->bad_lines, 4);
    assert_non_null(strstr(log->first_bad, "run-a/metrics.jsonl:2: "));
    assert_int_equal(log->steps, 0);
    assert_true(isnan(log->loss) && isnan(log->seconds) && isnan(log->best_top1));
    dsc_runlog_destroy(&log);
    assert_fails(DSC_E_FORMAT, "holds no line of metrics", read_text("", 0, &log));
    assert_fails(DSC_E_FORMAT, "run-a/metrics.jsonl:1: ", read_text("x\n", 2, &log));
    assert_fails(DSC_E_NOT_FOUND, "no/such/run", dsc_runlog_read("no/such/run", &log));
    assert_null(log);
}

/* The linker sends every calloc of the program's files here. */
static int64_t fail_countdown; /* 1: the next call fails, 0: none */
void *__real_calloc(size_t count, size_t size);
void *__wrap_calloc(size_t count, size_t size);

void *__wrap_calloc(size_t count, size_t size) {
    return fail_countdown > 0 && --fail_countdown == 0 ? NULL : __real_calloc(count, size);
}

static void test_runlog_out_of_memory(void **state) {
    (void)state;
    for (int64_t nth = 1;; nth++) {
        dsc_runlog *log = NULL;
        assert_true(nth < 100);
        fail_countdown = nth;
        dsc_status status = read_text(good, sizeof good - 1, &log);
        fail_countdown = 0;
        if (status == DSC_OK) {
            dsc_runlog_destroy(&log);
            assert_true(nth > 3);
            return;
        }
        assert_int_equal(status, DSC_E_MEMORY);
        assert_null(log);
    }
}

/* The data in the page of a run; the caller releases them. */
static json_t *page_data(dsc_runlog *log) {
    const dsc_report_runs runs = {.logs = &log, .count = 1};
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    assert_ok(dsc_report_write_page(out, &runs));
    fclose(out);
    const char *begin = strstr(text, "id=\"data\">") + strlen("id=\"data\">");
    const char *end = strstr(begin, "</script>"); /* the next one: no text in the data may hold it */
    json_error_t error;
    json_t *data = json_loadb(begin, (size_t)(end - begin), 0, &error);
    free(text);
    return data;
}

/* The tables of ranks; they start anew when a run is resumed on another number of ranks. */
static void test_runlog_ranks(void **state) {
    (void)state;
    static const char text[] = "{\"kind\":\"run\",\"ranks\":2,\"step\":0}\n"
                               "{\"kind\":\"load\",\"step\":5,\"ranks\":[{\"data\":1},{\"parameters\":7}]}\n"
                               "{\"kind\":\"run\",\"ranks\":2,\"step\":5}\n"
                               "{\"kind\":\"load\",\"step\":9,\"ranks\":[{\"data\":3},{\"parameters\":8}]}\n",
                      other[] = "{\"kind\":\"run\",\"ranks\":1,\"step\":9}\n"
                                "{\"kind\":\"load\",\"step\":10,\"ranks\":[{\"data\":4}]}\n";
    dsc_runlog *log = NULL;
    assert_ok(read_text(text, sizeof text - 1, &log));
    const dsc_runlog_table *table = &log->tables[DSC_RUNLOG_RANKS];
    assert_true(log->loaded == 2 && table->rows == 2 && table->columns == 2 * DSC_RUNLOG_RANK_VALUES);
    assert_true(table->values[0] == 1 && table->values[25] == 7 && table->values[26] == 3);
    dsc_runlog_destroy(&log);
    char both[1024];
    assert_ok(read_text(both, (size_t)snprintf(both, sizeof both, "%s%s", text, other), &log));
    table = &log->tables[DSC_RUNLOG_RANKS];
    assert_true(log->loaded == 1 && table->rows == 1 && table->values[0] == 4);
    dsc_runlog_destroy(&log);
}

/* Produces every form of output of a run. */
static void show_run(dsc_runlog *log, FILE *sink) {
    const dsc_report_runs runs = {.logs = &log, .count = 1};
    assert_ok(dsc_report_plot(sink, &log, 1, DSC_REPORT_TOP1, DSC_REPORT_EPOCH));
    assert_ok(dsc_report_plot(sink, &log, 1, DSC_REPORT_LR, DSC_REPORT_TIME));
    assert_ok(dsc_report_print_table(sink, &runs, 80));
    assert_ok(dsc_report_print_csv(sink, &runs));
    assert_ok(dsc_report_print_json(sink, &runs));
}

/* 10,000 damaged files: cut off, and up to eight bits flipped; what is read can always be shown. */
static void test_runlog_fuzz(void **state) {
    (void)state;
    FILE *sink = fopen("/dev/null", "w");
    int accepted = 0;
    assert_non_null(sink);
    for (uint64_t round = 0; round < 10000; round++) {
        dsc_rng rng = dsc_rng_start(2, DSC_RNG_TEST, 0, round);
        char text[sizeof good + sizeof kfac];
        size_t length = sizeof good + sizeof kfac - 2;
        snprintf(text, sizeof text, "%s%s", good, kfac);
        uint32_t changes = dsc_rng_below(&rng, 9);
        for (uint32_t i = 0; i < changes; i++)
            text[dsc_rng_below(&rng, (uint32_t)length)] ^= (char)(1u << dsc_rng_below(&rng, 8));
        if (round % 2)
            length = 1 + dsc_rng_below(&rng, (uint32_t)length - 1);
        dsc_runlog *log = NULL;
        FILE *stream = fmemopen(text, length, "r");
        assert_non_null(stream);
        dsc_status status = dsc_runlog_read_stream("fuzz", "fuzz", stream, &log);
        fclose(stream);
        assert_true(status == DSC_OK || status == DSC_E_FORMAT);
        if (status == DSC_OK) {
            accepted++;
            show_run(log, sink);
            if (round % 10 == 0) {
                json_t *data = page_data(log);
                assert_int_equal(json_array_size(json_object_get(data, "runs")), 1);
                json_decref(data);
            }
        }
        dsc_runlog_destroy(&log);
    }
    fclose(sink);
    assert_true(accepted > 5000 && accepted < 10000);
}

/* ---- the page ---- */

/* The data in the page: numbers are unchanged, and no text can end the script. */
static void test_page(void **state) {
    (void)state;
    char text[4096];
    dsc_runlog *log = NULL;
    int length = snprintf(text, sizeof text, "%s%s%s", good, kfac,
                          "{\"kind\":\"alarm\",\"message\":\"</script><!--\\u2028\\\\\"}\n");
    assert_ok(read_text(text, (size_t)length, &log));
    json_t *data = page_data(log), *run = json_array_get(json_object_get(data, "runs"), 0);
    assert_non_null(data);
    assert_string_equal(json_string_value(json_array_get(json_object_get(run, "alarms"), 0)),
                        "</script><!--\u2028\\");
    assert_string_equal(json_string_value(json_object_get(run, "status")), "done");
    assert_true(json_number_value(json_object_get(run, "best_top1")) == 0.5);
    const json_t *evals = json_object_get(run, "evals"), *heat = json_object_get(run, "heat");
    assert_true(json_number_value(json_array_get(json_object_get(evals, "top1"), 2)) == 0.375);
    assert_null(json_object_get(evals, "distance"));
    const json_t *cosines = json_object_get(json_object_get(heat, "layers"), "cosine");
    assert_int_equal(json_array_size(cosines), 2);
    assert_true(json_number_value(json_array_get(json_array_get(cosines, 0), 1)) == 0.75);
    assert_true(json_is_null(json_array_get(json_array_get(cosines, 1), 1)));
    json_decref(data);
    dsc_runlog_destroy(&log);
}

/* ---- tables ---- */

#define CONFIG(rest) "{\"kind\":\"run\",\"ranks\":1,\"config\":{\"model\":\"mlp\"," rest "}}\n"

/* The options in which runs differ, except those that a run does not use. */
static void test_differences(void **state) {
    (void)state;
    static const char *const texts[] = {
        CONFIG("\"lr\":0.1,\"warmup_start\":0.1,\"data_threads\":1,\"consensus\":\"allreduce\",\"kfac\":{"
               "\"damping\":0.003,\"update_freq\":0,\"clip\":\"global\"},\"gossip\":{\"group\":1,\"synch_"
               "freq\":7}"),
        CONFIG("\"lr\":0.2,\"warmup_start\":0.2,\"data_threads\":2,\"consensus\":\"allreduce\",\"kfac\":{"
               "\"damping\":0.01,\"update_freq\":5,\"clip\":\"global\"},\"own\":{\"a,b\":[1,[2,3],true]}"),
    };
    dsc_runlog *logs[2] = {NULL, NULL};
    const dsc_report_runs runs = {.logs = logs, .count = 2};
    char *text = NULL;
    size_t size = 0;
    for (int i = 0; i < 2; i++)
        assert_ok(read_text(texts[i], strlen(texts[i]), &logs[i]));
    FILE *out = open_memstream(&text, &size);
    assert_ok(dsc_report_print_csv(out, &runs));
    fclose(out);
    assert_string_equal(
        text,
        "run,status,epochs,steps,best_loss,best_top1,best_epoch,top1,pixel_error,ema_top1,loss,target_s,"
        "time_s,images_per_s,tokens_per_s,mfu,lr,kfac-update-freq,kfac-damping,\"own.a,b\"\n"
        "run-a,,0,0,,,,,,,,,,,,,0.1,0,,\n"
        "run-a,,0,0,,,,,,,,,,,,,0.2,5,0.01,\"1,2:3,on\"\n");
    free(text);
    for (int i = 0; i < 2; i++)
        dsc_runlog_destroy(&logs[i]);
}

/* Columns that do not fit come below, with the names of the runs again. */
static void test_narrow_table(void **state) {
    (void)state;
    dsc_runlog *log = NULL;
    char *text = NULL;
    size_t size = 0;
    assert_ok(read_text(good, sizeof good - 1, &log));
    dsc_report_runs runs = {.logs = &log, .count = 1};
    FILE *out = open_memstream(&text, &size);
    assert_ok(dsc_report_print_table(out, &runs, 40));
    fclose(out);
    assert_string_equal(text, "run    status  epochs  best top-1\n"
                              "run-a  done         2     50.00 %\n\n"
                              "run      top-1    loss  time  images/s\n"
                              "run-a  37.50 %  1.4500  3.2s       115\n\n"
                              "run       mfu\n"
                              "run-a  43.2 %\n");
    free(text);
    /* Columns of which this run has a value. */
    log->ema_top1 = 25;
    runs.target = 12.5;
    log->target_s = 61;
    log->mfu = NAN;
    out = open_memstream(&text, &size);
    assert_ok(dsc_report_print_table(out, &runs, 100));
    fclose(out);
    assert_string_equal(
        text, "run    status  epochs  best top-1    top-1  EMA top-1    loss  to 12.5 %  time  images/s\n"
              "run-a  done         2     50.00 %  37.50 %    25.00 %  1.4500      1m01s  3.2s       115\n");
    free(text);
    dsc_runlog_destroy(&log);
}

/* ---- plots ---- */

static char *draw(const dsc_plot_series *series, int64_t count, int utf8) {
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    dsc_plot_options o = {.title = "title", .x_label = "epoch", .width = 40, .height = 5, .utf8 = utf8};
    assert_ok(dsc_plot_draw(out, series, count, &o));
    fclose(out);
    return text;
}

static int count_of(const char *text, const char *what) {
    int count = 0;
    for (const char *p = text; (p = strstr(p, what)); p += strlen(what))
        count++;
    return count;
}

/* Labels are round numbers, and the curve stays inside. */
static void test_plot_labels(void **state) {
    (void)state;
    static const double x[] = {1, 2, 3}, y[] = {7.8, 9.7, 62.4};
    const dsc_plot_series s = {"a run", x, y, 3};
    char *text = draw(&s, 1, 0);
    assert_non_null(strstr(text, "    100 |"));
    assert_non_null(strstr(text, "      0 |"));
    free(text);
}

/* A straight line from (1, 0) to (3, 100): marks in the corners and the middle, labels at the axes. */
static void test_plot_ascii(void **state) {
    (void)state;
    static const double x[] = {1, 2, 3}, y[] = {0, 50, 100};
    const dsc_plot_series s = {"a run", x, y, 3};
    char *text = draw(&s, 1, 0);
    const char *first = strchr(text, '\n') + 1;
    assert_non_null(strstr(text, "title\n"));
    assert_true(strncmp(first, "    100 |", 9) == 0);
    assert_true(first[9 + 30] == 'o' && first[9 + 31] == '\n');
    assert_non_null(strstr(text, "      0 |o"));
    assert_int_equal(count_of(text, "o"), 3 + 1 + 1); /* the points, the legend, "epoch" */
    assert_non_null(strstr(text, "o a run\n"));
    for (const char *p = text; *p; p++)
        assert_true((unsigned char)*p < 128);
    free(text);
}

static void test_plot_several(void **state) {
    (void)state;
    static const double x[] = {1, 2}, a[] = {0, 1}, b[] = {1, 1}, bad[] = {NAN, INFINITY};
    const dsc_plot_series series[] = {{"a", x, a, 2}, {"b", x, b, 2}, {"c", x, bad, 2}, {"d", x, a, 0}};
    char *text = draw(series, 4, 1);
    assert_int_equal(count_of(text, "●"), 2); /* its first point and the legend */
    assert_int_equal(count_of(text, "○"), 2);
    assert_int_equal(count_of(text, "◆"), 2); /* where both end, and the legend */
    assert_non_null(strstr(text, "◆ several"));
    free(text);
    text = draw(series + 2, 2, 1);
    assert_non_null(strstr(text, "nothing to plot yet"));
    free(text);
}

static void test_plot_extreme(void **state) {
    (void)state;
    static const double x[] = {-1e308, 1e308}, y[] = {1e308, -1e308}, same[] = {1e300, 1e300};
    const dsc_plot_series series[] = {{"a", x, y, 2}, {"b", same, same, 2}};
    for (int i = 0; i < 2; i++) {
        char *text = draw(&series[i], 1, i);
        assert_non_null(text);
        free(text);
    }
}

/* ---- texts ---- */

static void test_texts(void **state) {
    (void)state;
    char text[32];
    assert_string_equal(dsc_cli_duration(4.21, text, sizeof text), "4.2s");
    assert_string_equal(dsc_cli_duration(42.4, text, sizeof text), "42s");
    assert_string_equal(dsc_cli_duration(59.9, text, sizeof text), "1m00s");
    assert_string_equal(dsc_cli_duration(65, text, sizeof text), "1m05s");
    assert_string_equal(dsc_cli_duration(3599.9, text, sizeof text), "1h00m");
    assert_string_equal(dsc_cli_duration(7380, text, sizeof text), "2h03m");
    assert_string_equal(dsc_cli_duration(NAN, text, sizeof text), "?");
    assert_string_equal(dsc_cli_grouped(0, text, sizeof text), "0");
    assert_string_equal(dsc_cli_grouped(999, text, sizeof text), "999");
    assert_string_equal(dsc_cli_grouped(25557032, text, sizeof text), "25,557,032");
    assert_string_equal(dsc_cli_grouped(-464154, text, sizeof text), "-464,154");
}

/* Control characters and what is not UTF-8 are replaced; characters stay whole. */
static void test_clean(void **state) {
    (void)state;
    static const char *const cases[][2] = {
        {"runs/a", "runs/a"},
        {"\033[31m\n\x7f", "?[31m??"},
        {"\xc2\x9b"
         "31m",
         "?31m"},
        {"größer 你 😀", "größer 你 😀"},
        {"\xff\xc0\xaf\xed\xa0\x80x",
         "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbdx"},
        {"\xf4\x90\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
        {"\xe4\xbd", "\xef\xbf\xbd\xef\xbf\xbd"},
    };
    char text[64];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_string_equal(dsc_cli_clean(cases[i][0], text, sizeof text), cases[i][1]);
    assert_string_equal(dsc_cli_clean("aä你", text, 4), "aä");
    assert_string_equal(dsc_cli_clean("aä你", text, 3), "a");
    assert_string_equal(dsc_cli_clean("aä你", text, 1), "");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_runlog),
        cmocka_unit_test(test_runlog_resumed),
        cmocka_unit_test(test_runlog_ema_and_target),
        cmocka_unit_test(test_runlog_from_checkpoint),
        cmocka_unit_test(test_runlog_status),
        cmocka_unit_test(test_runlog_kfac),
        cmocka_unit_test(test_runlog_ranks),
        cmocka_unit_test(test_page),
        cmocka_unit_test(test_differences),
        cmocka_unit_test(test_narrow_table),
        cmocka_unit_test(test_clean),
        cmocka_unit_test(test_runlog_alarms),
        cmocka_unit_test(test_runlog_damaged),
        cmocka_unit_test(test_runlog_out_of_memory),
        cmocka_unit_test(test_runlog_fuzz),
        cmocka_unit_test(test_plot_labels),
        cmocka_unit_test(test_plot_ascii),
        cmocka_unit_test(test_plot_several),
        cmocka_unit_test(test_plot_extreme),
        cmocka_unit_test(test_texts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
