/* The foreground-restricted Rand score of segments: pictures whose score is known, and a naive computation of
 * others. */
#include "test.h"

#include "base/rng.h"
#include "train/rand_score.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROOM = 64, LEVELS = 3 };

/* The pictures are drawn with letters: '#' is a pixel of an object, and '.' is none. */
static void draw(const char *text, uint8_t *pixels) {
    for (size_t i = 0; i < strlen(text); i++)
        pixels[i] = text[i] == '#';
}

static double score_of(const char *truth, const char *found, int64_t h, int64_t w) {
    uint8_t object[ROOM], level[ROOM];
    double score;
    assert_int_equal((int64_t)strlen(truth), h * w);
    assert_int_equal((int64_t)strlen(found), h * w);
    draw(truth, object);
    draw(found, level);
    assert_ok(dsc_rand_score(object, level, h, w, 1, &score));
    return score;
}

static void test_known(void **state) {
    (void)state;
    static const struct {
        const char *truth, *found;
        int64_t h, w;
        double score;
    } cases[] = {
        {"##.##"
         "##.##",
         "##.##"
         "##.##",
         2, 5, 1},
        /* Pixels outside of all objects do not count. */
        {"##.....", "##...##", 1, 7, 1},
        /* Joined: 2 (4^2 + 4^2) / (8^2 + 4^2 + 4^2). */
        {"##.##"
         "##.##",
         "#####"
         "##.##",
         2, 5, 2.0 / 3},
        /* Cut: 2 (4^2 + 4^2) / (4^2 + 4^2 + 9^2). */
        {"#########", "####.####", 1, 9, 64.0 / 113},
        /* Half of it: 2 * 2^2 / (2^2 + 4^2). */
        {"####", "##..", 1, 4, 0.4},
        {"####", "....", 1, 4, 0},
        {"....", "####", 1, 4, -1},
        /* Corners do not connect: two segments of one pixel in an object of four, 2 (1 + 1) / (1 + 1 + 4^2). */
        {"##"
         "##",
         "#."
         ".#",
         2, 2, 4.0 / 18},
        /* A row does not go on at the start of the next: 2 (1 + 1) / (1 + 1 + 1 + 1). */
        {"..#"
         "#..",
         "..#"
         "#..",
         2, 3, 1},
        /* Round a corner it is one object: 2 * 5^2 / (5^2 + 5^2). */
        {"###"
         "#.."
         "#..",
         "###"
         "#.."
         "#..",
         3, 3, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double score = score_of(cases[i].truth, cases[i].found, cases[i].h, cases[i].w);
        if (fabs(score - cases[i].score) > 1e-15)
            fail_msg("case %zu: %.17g instead of %.17g", i, score, cases[i].score);
    }
}

/* ---- by the book ---- */

/* Segments by spreading the smallest number of a neighbour until nothing changes. */
static void naive_segments(const uint8_t *value, int limit, int h, int w, int *segment) {
    int changed = 1;
    for (int i = 0; i < h * w; i++)
        segment[i] = value[i] > limit ? i : -1;
    while (changed) {
        changed = 0;
        for (int a = 0; a < h * w; a++)
            for (int b = 0; b < h * w; b++) {
                const int rows = abs(a / w - b / w), columns = abs(a % w - b % w);
                if (rows + columns != 1 || segment[a] < 0 || segment[b] < 0 || segment[b] >= segment[a])
                    continue;
                segment[a] = segment[b];
                changed = 1;
            }
    }
}

static double naive_score(const uint8_t *object, const uint8_t *level, int limit, int h, int w) {
    int truth[ROOM], found[ROOM];
    double both = 0, predicted = 0, actual = 0;
    naive_segments(object, 0, h, w, truth);
    naive_segments(level, limit, h, w, found);
    for (int i = 0; i < h * w; i++) { /* numbers of segments are pixels */
        double s = 0, t = 0;
        for (int p = 0; p < h * w; p++) {
            t += truth[p] == i;
            s += truth[p] >= 0 && found[p] == i;
        }
        predicted += s * s;
        actual += t * t;
        for (int j = 0; j < h * w; j++) {
            double shared = 0;
            for (int p = 0; p < h * w; p++)
                shared += found[p] == i && truth[p] == j;
            both += shared * shared;
        }
    }
    return actual > 0 ? 2 * both / (predicted + actual) : -1;
}

static void test_random(void **state) {
    (void)state;
    for (uint64_t n = 0; n < 200; n++) {
        dsc_rng rng = dsc_rng_start(1, DSC_RNG_TEST, 0, n);
        const int h = 1 + (int)dsc_rng_below(&rng, 7), w = 1 + (int)dsc_rng_below(&rng, 8);
        uint8_t object[ROOM], level[ROOM];
        double score[LEVELS];
        for (int i = 0; i < h * w; i++) {
            object[i] = dsc_rng_below(&rng, 10) < 7;
            level[i] = (uint8_t)dsc_rng_below(&rng, LEVELS + 1);
        }
        assert_ok(dsc_rand_score(object, level, h, w, LEVELS, score));
        for (int k = 0; k < LEVELS; k++) {
            double wanted = naive_score(object, level, k, h, w);
            if (fabs(score[k] - wanted) > 1e-12)
                fail_msg("picture %d, threshold %d: %.17g instead of %.17g", (int)n, k, score[k], wanted);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_known), cmocka_unit_test(test_random)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
