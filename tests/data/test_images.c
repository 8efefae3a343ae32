/* Decoding, resampling and image folders. */
#include "test.h"

#include "base/memory.h"
#include "base/rng.h"
#include "data/augment.h"
#include "data/dataset.h"
#include "data/encode.h"
#include "data/fixture.h"
#include "data/image_files.h"
#include "data/image_write.h"
#include "data/resample.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ROOM = 1 << 16 };

/* ---- decoding ---- */
#if defined DSC_HAVE_JPEG || defined DSC_HAVE_PNG
static uint8_t file[ROOM];

static dsc_bytes decode(size_t size, int shrink, int64_t h, int64_t w) {
    dsc_encoded encoded = {"a file", file, (int64_t)size};
    dsc_bytes out = {NULL, 0};
    int64_t got_h = 0, got_w = 0;
    assert_ok(dsc_image_size(&encoded, &got_h, &got_w));
    assert_ok(dsc_image_decode(&encoded, shrink, &out, &got_h, &got_w));
    assert_int_equal(got_h, h);
    assert_int_equal(got_w, w);
    return out;
}
#endif

#ifdef DSC_HAVE_PNG
/* The three bytes a pixel of the kind must become. */
static void png_pixel(test_png_kind kind, const uint8_t *p, uint8_t rgb[3]) {
    for (int c = 0; c < 3; c++) {
        switch (kind) {
        case TEST_PNG_GREY:
        case TEST_PNG_GREY_ALPHA:
            rgb[c] = p[0];
            break;
        case TEST_PNG_PALETTE:
            rgb[c] = c == 0 ? p[0] : c == 1 ? (uint8_t)(255 - p[0]) : (uint8_t)(2 * p[0]);
            break;
        case TEST_PNG_RGB16: /* v * 255 / 65535 to the nearest */
            rgb[c] = (uint8_t)lround((p[2 * c] * 256 + p[2 * c + 1]) / 257.0);
            break;
        case TEST_PNG_GREY1:
            rgb[c] = p[0] ? 255 : 0;
            break;
        default:
            rgb[c] = p[c];
        }
    }
}

static void test_png_kinds(void **state) {
    (void)state;
    enum { H = 11, W = 13 };
    static const int bytes[TEST_PNG_KINDS] = {3, 1, 2, 4, 1, 6, 1};
    static uint8_t pixels[H * W * 6];
    for (int kind = 0; kind < TEST_PNG_KINDS; kind++) {
        for (int i = 0; i < H * W * bytes[kind]; i++)
            pixels[i] = (uint8_t)(kind == TEST_PNG_GREY1 ? i % 5 == 0 : i * 37 + i / 7);
        for (int interlaced = 0; interlaced < 2; interlaced++) {
            test_image image = {W, H, pixels};
            size_t size = test_png(&image, (test_png_kind)kind, interlaced, ROOM, file);
            dsc_bytes out = decode(size, 1, H, W);
            for (int i = 0; i < H * W; i++) {
                uint8_t rgb[3];
                png_pixel((test_png_kind)kind, pixels + i * bytes[kind], rgb);
                assert_memory_equal(out.data + 3 * i, rgb, 3);
            }
            dsc_bytes_free(&out);
        }
    }
}

static void check_written(const char *path, const uint8_t *pixels, int64_t h, int64_t w) {
    dsc_bytes read = {NULL, 0}, out = {NULL, 0};
    dsc_encoded encoded;
    int64_t got_h, got_w;
    assert_ok(dsc_png_write_grey(path, pixels, h, w));
    assert_ok(dsc_image_file_read(path, &read, &encoded));
    assert_ok(dsc_image_decode(&encoded, 1, &out, &got_h, &got_w));
    assert_int_equal(got_h, h);
    assert_int_equal(got_w, w);
    assert_int_equal(encoded.data[24], 8); /* bits */
    assert_int_equal(encoded.data[25], 0); /* grey */
    for (int64_t i = 0; i < 3 * h * w; i++)
        assert_int_equal(out.data[i], pixels[i / 3]);
    dsc_bytes_free(&read);
    dsc_bytes_free(&out);
}

/* Written images are read back; a full disk, or a failing allocation, leaves no part of a file. */
static void test_png_written(void **state) {
    (void)state;
    static const int64_t sizes[][2] = {{1, 1}, {11, 13}, {1, 300}, {300, 1}, {64, 64}};
    static uint8_t pixels[64 * 64];
    char folder[TEST_PATH], path[TEST_PATH + 16];
    struct rlimit before, limit;
    dsc_rng rng = dsc_rng_start(1, DSC_RNG_AUGMENT, 0, 0);
    test_make_folder(folder);
    snprintf(path, sizeof path, "%s/mask.png", folder);
    for (size_t i = 0; i < sizeof pixels; i++)
        pixels[i] = (uint8_t)dsc_rng_u32(&rng);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        check_written(path, pixels, sizes[i][0], sizes[i][1]); /* the older file is replaced */
    assert_int_equal(unlink(path), 0);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    limit = (struct rlimit){100, before.rlim_max};
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    dsc_status status = dsc_png_write_grey(path, pixels, 64, 64);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(status, DSC_E_IO);
    assert_non_null(strstr(dsc_error_message(), "cannot write '"));
    for (int64_t n = 1; n < 1000; n++) {
        dsc_memory_fail_at(n);
        status = dsc_png_write_grey(path, pixels, 64, 64);
        dsc_memory_fail_at(0);
        if (status == DSC_OK)
            break;
        assert_int_equal(status, DSC_E_MEMORY);
    }
    assert_ok(status);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(folder), 0); /* there is nothing else in it */
    assert_fails(DSC_E_IO, "cannot write '", dsc_png_write_grey(path, pixels, 1, 1));
}
#endif

#ifdef DSC_HAVE_JPEG
/* Images of one colour survive at quality 100 but for the rounding of the colour transform. */
static void check_jpeg(test_colours colours, int marker, int progressive, const uint8_t *pixel,
                       const int rgb[3], int slack) {
    enum { H = 17, W = 24 };
    static uint8_t pixels[H * W * 4];
    int channels = colours == TEST_GREY ? 1 : colours == TEST_RGB ? 3 : 4;
    for (int i = 0; i < H * W; i++)
        memcpy(pixels + i * channels, pixel, (size_t)channels);
    test_image image = {W, H, pixels};
    size_t size = test_jpeg(&image, colours, marker, progressive, ROOM, file);
    for (int shrink = 1; shrink <= 8; shrink *= 2) {
        int64_t h = (H + shrink - 1) / shrink, w = W / shrink;
        dsc_bytes out = decode(size, shrink, h, w);
        for (int64_t i = 0; i < h * w * 3; i++)
            if (abs(out.data[i] - rgb[i % 3]) > slack)
                fail_msg("colours %d, channel %d: %d instead of %d", (int)colours, (int)(i % 3), out.data[i],
                         rgb[i % 3]);
        dsc_bytes_free(&out);
    }
}

static void test_jpeg_kinds(void **state) {
    (void)state;
    const uint8_t grey[] = {77}, rgb[] = {200, 30, 90}, cmyk[] = {40, 120, 250, 100};
    for (int progressive = 0; progressive < 2; progressive++) {
        check_jpeg(TEST_GREY, 0, progressive, grey, (int[]){77, 77, 77}, 0);
        check_jpeg(TEST_RGB, 0, progressive, rgb, (int[]){200, 30, 90}, 2);
        /* ink 0..255 on white; Adobe's files hold 255 - ink */
        const int plain[] = {(215 * 155 + 127) / 255, (135 * 155 + 127) / 255, (5 * 155 + 127) / 255};
        const int adobe[] = {(40 * 100 + 127) / 255, (120 * 100 + 127) / 255, (250 * 100 + 127) / 255};
        check_jpeg(TEST_CMYK, 0, progressive, cmyk, plain, 0);
        check_jpeg(TEST_CMYK, 1, progressive, cmyk, adobe, 0);
        check_jpeg(TEST_YCCK, 1, progressive, cmyk, adobe, 2);
    }
}
#endif

#ifdef DSC_HAVE_JPEG
/* An image of more than 20,000 pixels per side is decoded at half its size, whatever was asked for. */
static void test_large_jpeg(void **state) {
    (void)state;
    enum { HIGH = 20016, WIDE = 16 };
    static uint8_t pixels[HIGH * WIDE], packed[HIGH * WIDE];
    for (int y = 0; y < HIGH; y++)
        memset(pixels + y * WIDE, 255 * (y >= HIGH / 2), WIDE);
    test_image image = {WIDE, HIGH, pixels};
    dsc_bytes out = {NULL, 0};
    for (int progressive = 0; progressive < 2; progressive++) {
        size_t size = test_jpeg(&image, TEST_GREY, 0, progressive, sizeof packed, packed);
        dsc_encoded encoded = {"large.jpg", packed, (int64_t)size};
        for (int shrink = 1; shrink <= 8; shrink *= 2) {
            int64_t h = 0, w = 0, by = shrink > 1 ? shrink : 2;
            assert_ok(dsc_image_size(&encoded, &h, &w));
            assert_true(h == HIGH && w == WIDE);
            assert_ok(dsc_image_decode(&encoded, shrink, &out, &h, &w));
            assert_true(h == HIGH / by && w == WIDE / by);
            assert_true(out.data[0] < 10 && out.data[3 * h * w - 1] > 245);
        }
    }
    dsc_bytes_free(&out);
}
#endif

#ifdef DSC_HAVE_WEBP
/* Without loss the pixels are the same; with it, a smooth image is near. */
static void test_webp_images(void **state) {
    (void)state;
    enum { H = 20, W = 28 };
    uint8_t pixels[H * W * 3];
    for (int y = 0; y < H; y++)
        for (int x = 0; x < W; x++)
            for (int c = 0; c < 3; c++)
                pixels[(y * W + x) * 3 + c] = (uint8_t)(c == 0 ? 9 * x : c == 1 ? 12 * y : 128);
    test_image image = {W, H, pixels};
    dsc_bytes out = {NULL, 0};
    for (int lossless = 0; lossless < 2; lossless++) {
        int64_t h = 0, w = 0;
        dsc_encoded encoded = {"x.webp", file, (int64_t)test_webp(&image, lossless, ROOM, file)};
        assert_ok(dsc_image_size(&encoded, &h, &w));
        assert_true(h == H && w == W);
        assert_ok(dsc_image_decode(&encoded, 4, &out, &h, &w)); /* shrink is for JPEGs only */
        assert_true(h == H && w == W);
        for (int i = 0; i < H * W * 3; i++)
            assert_true(abs(out.data[i] - pixels[i]) <= (lossless ? 0 : 24));
    }
    dsc_bytes_free(&out);
}
#endif

static void expect_broken(const void *data, size_t size, const char *message) {
    dsc_encoded encoded = {"dir/x.JPEG", data, (int64_t)size};
    dsc_bytes out = {NULL, 0};
    int64_t h = 0, w = 0;
    dsc_status status = dsc_image_size(&encoded, &h, &w);
    if (status == DSC_OK)
        status = dsc_image_decode(&encoded, 1, &out, &h, &w);
    dsc_bytes_free(&out);
    assert_int_equal(status, DSC_E_FORMAT);
    if (!strstr(dsc_error_message(), message))
        fail_msg("message '%s' lacks '%s'", dsc_error_message(), message);
}

static void test_broken_images(void **state) {
    (void)state;
    expect_broken("\0\0\0\0\0", 5, "'dir/x.JPEG' is no JPEG, PNG or WebP (5 bytes, starts 00 00 00 00)");
    expect_broken("GI", 2, "(2 bytes, starts 47 49)");
    expect_broken("", 0, "(0 bytes, starts nowhere)");
#if defined DSC_HAVE_JPEG || defined DSC_HAVE_PNG
    uint8_t pixels[16 * 16 * 3];
    for (int i = 0; i < 16 * 16 * 3; i++)
        pixels[i] = (uint8_t)(i * i);
    test_image image = {16, 16, pixels};
    size_t size;
#endif
#ifdef DSC_HAVE_JPEG
    expect_broken("\xFF\xD8\xFF", 3, "'dir/x.JPEG' is a broken JPEG");
    size = test_jpeg(&image, TEST_RGB, 0, 0, ROOM, file);
    expect_broken(file, size / 2, "is a broken JPEG: Premature end");
    uint8_t *frame = file; /* its header: marker, length, precision, height, width */
    while (frame[0] != 0xFF || frame[1] != 0xC0)
        frame++;
    memcpy(frame + 5, (uint8_t[]){0x4E, 0x21, 0, 16}, 4); /* 20001 high */
    expect_broken(file, size, "is a broken JPEG: Corrupt JPEG data: premature end of data segment");
    memcpy(frame + 5, (uint8_t[]){0x4E, 0x20, 0x4E, 0x20}, 4);
    expect_broken(file, size, "is a broken JPEG: Corrupt JPEG data: premature end of data segment");
    size = test_jpeg(&image, TEST_RGB, 0, 1, ROOM, file);
    for (frame = file; frame[0] != 0xFF || frame[1] != 0xC2;)
        frame++;
    memcpy(frame + 5, (uint8_t[]){0x4E, 0x20, 0x4E, 0x20}, 4);
    expect_broken(file, size, "needs more than 1024 MiB to be decoded: save it as a baseline JPEG");
#endif
#ifdef DSC_HAVE_WEBP
    size = test_webp(&image, 0, ROOM, file);
    expect_broken(file, 12, "is a broken WebP: the file ends too early");
    expect_broken(file, size / 2, "is a broken WebP: the file ends too early");
    memcpy(file + 12, "junk", 4);
    expect_broken(file, size, "is a broken WebP");
    static const uint8_t moving[] = {
        'R', 'I', 'F', 'F', 22, 0, 0, 0, 'W', 'E', 'B', 'P', 'V', 'P', '8',
        'X', 10,  0,   0,   0,  2, 0, 0, 0,   15,  0,   0,   15,  0,   0}; /* flag 2: animation */
    expect_broken(moving, sizeof moving, "is an animated WebP: save one of its pictures alone");
    static const uint8_t huge[] = {'R', 'I', 'F', 'F', 22,   0,    0,  0,    'W',  'E',
                                   'B', 'P', 'V', 'P', '8',  'X',  10, 0,    0,    0,
                                   0,   0,   0,   0,   0xFF, 0x3E, 0,  0xFF, 0x3E, 0}; /* 16128 a side */
    expect_broken(huge, sizeof huge, "has 16128 x 16128 pixels: at most");
#else
    static const uint8_t some[] = {'R', 'I', 'F', 'F', 4, 0, 0, 0, 'W', 'E', 'B', 'P'};
    dsc_encoded encoded = {"x.webp", some, sizeof some};
    int64_t h, w;
    assert_fails(DSC_E_UNSUPPORTED, "install libwebp-dev and build again", dsc_image_size(&encoded, &h, &w));
#endif
#ifdef DSC_HAVE_PNG
    size = test_png(&image, TEST_PNG_RGB, 0, ROOM, file);
    expect_broken(file, 20, "is a broken PNG: it has no header");
    expect_broken(file, size - 30, "is a broken PNG: the file ends too early");
    file[size - 30] ^= 4;
    expect_broken(file, size, "is a broken PNG");
    memcpy(file + 16, (uint8_t[]){0, 1, 0, 0}, 4);
    expect_broken(file, size, "has 65536 x 16 pixels");
    memcpy(file + 16, (uint8_t[]){0, 0, 0, 0}, 4);
    expect_broken(file, size, "has 0 x 16 pixels");
#endif
}

/* ---- resampling ---- */
static double triangle(double distance, double scale) {
    double width = scale > 1 ? scale : 1;
    return fmax(0, 1 - fabs(distance) / width);
}

/* The definition, in double and over all pixels of the box, for one output value. */
static double naive_value(const uint8_t *image, const dsc_resample_axis *y, const dsc_resample_axis *x,
                          int64_t i, int64_t j, int c) {
    double sy = y->length / (double)y->total, sx = x->length / (double)x->total, sum = 0, weights = 0;
    double my = y->start + ((double)(y->first + i) + 0.5) * sy,
           mx = x->start + ((double)(x->first + j) + 0.5) * sx;
    for (int64_t v = (int64_t)floor(y->start); v < (int64_t)ceil(y->start + y->length); v++) {
        for (int64_t u = (int64_t)floor(x->start); u < (int64_t)ceil(x->start + x->length); u++) {
            double weight = triangle((double)v + 0.5 - my, sy) * triangle((double)u + 0.5 - mx, sx);
            sum += weight * image[(v * x->in + u) * 3 + c];
            weights += weight;
        }
    }
    return sum / weights;
}

static void test_resample(void **state) {
    (void)state;
    enum { H = 23, W = 31 };
    static uint8_t image[H * W * 3];
    for (int i = 0; i < H * W * 3; i++)
        image[i] = (uint8_t)(i * 71 + i / 13);
    const dsc_resample_axis cases[][2] = {
        {{H, 0, H, 7, 0, 7}, {W, 0, W, 9, 0, 9}},             /* smaller */
        {{H, 0, H, 50, 0, 50}, {W, 0, W, 64, 0, 64}},         /* larger */
        {{H, 3, 11, 8, 0, 8}, {W, 5, 20, 8, 0, 8}},           /* a box */
        {{H, 0, H, 16, 3, 10}, {W, 0, W, 21, 5, 10}},         /* the middle of the result */
        {{H, 0.4, 17.7, 5, 0, 5}, {W, 2.5, 28.5, 12, 1, 11}}, /* a box between pixels */
        {{H, 22, 1, 6, 0, 6}, {W, 30, 1, 6, 0, 6}},           /* one pixel */
        {{H, 0, H, 1, 0, 1}, {W, 0, W, 1, 0, 1}},             /* to one pixel */
        {{H, 21.7, 1.3, 3, 0, 3}, {W, 29.2, 1.8, 40, 0, 40}}, /* at the far edge */
    };
    dsc_bytes scratch = {NULL, 0};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        const dsc_resample_axis *y = &cases[k][0], *x = &cases[k][1];
        static float out[64 * 64 * 3];
        assert_ok(dsc_resample(image, y, x, &scratch, out));
        /* two passes of at most H and W products of numbers up to 255, in float */
        double tolerance = 2 * (H + W) * 0x1p-24 * 255;
        for (int64_t i = 0; i < y->count; i++)
            for (int64_t j = 0; j < x->count; j++)
                for (int c = 0; c < 3; c++)
                    assert_true(fabs(out[(i * x->count + j) * 3 + c] - naive_value(image, y, x, i, j, c)) <
                                tolerance);
    }
    dsc_resample_axis y = {H, 2, 20, 20, 0, 20}, x = {W, 1, 30, 30, 0, 30}; /* nothing to do: exact */
    static float out[20 * 30 * 3];
    assert_ok(dsc_resample(image, &y, &x, &scratch, out));
    for (int i = 0; i < 20 * 30 * 3; i++)
        assert_true(out[i] == (float)image[((i / 90 + 2) * W + i / 3 % 30 + 1) * 3 + i % 3]);
    dsc_bytes_free(&scratch);
}

/* ---- image folders ---- */
#ifdef DSC_HAVE_PNG
static const float mean[3] = {0.485f, 0.456f, 0.406f}, std[3] = {0.229f, 0.224f, 0.225f};

static uint8_t value_at(int number, int64_t y, int64_t x, int c) {
    return (uint8_t)(number * 50 + y * 11 + x * 3 + c * 17);
}

static void write_png(const char *folder, const char *name, int number, int h, int w) {
    static uint8_t pixels[64 * 64 * 3];
    for (int i = 0; i < h * w * 3; i++)
        pixels[i] = value_at(number, i / 3 / w, i / 3 % w, i % 3);
    test_image image = {w, h, pixels};
    test_write(folder, name, file, test_png(&image, TEST_PNG_RGB, 0, ROOM, file));
}

static void make_set(char folder[TEST_PATH], char spec[TEST_PATH + 32]) {
    test_make_folder(folder);
    test_spec("imagefolder", folder, spec);
    write_png(folder, "train/bee/2.png", 2, 16, 16);
    write_png(folder, "train/bee/1.PNG", 1, 16, 16);
    write_png(folder, "train/ant/images/0.png", 0, 16, 16); /* one folder deeper */
    write_png(folder, "train/cow/3.JPEG", 3, 32, 16);       /* what counts is what is inside */
    test_write(folder, "train/cow/notes.txt", "x", 1);
    test_write(folder, "train/cow/.hidden.png", "x", 1);
    test_write(folder, "train/README", "x", 1);
    write_png(folder, "val/cow/a.jpg", 4, 16, 32);
    write_png(folder, "val/bee/b.jpeg", 5, 16, 16);
}

static dsc_dataset *open_folder(const char *spec, dsc_split split, int64_t image_size) {
    dsc_data_options options;
    dsc_data_options_init(&options);
    options.image_size = image_size;
    dsc_dataset *set = NULL;
    assert_ok(dsc_dataset_open(spec, split, &options, &set));
    return set;
}

/* Size 14: the shorter side becomes 16, which it is already, so evaluation is the middle 14 x 14, exactly. */
static void check_middle(const dsc_dataset *set, int64_t index, int number, int h, int w, int32_t wanted) {
    static float x[14 * 14 * 3];
    int32_t label;
    assert_ok(dsc_dataset_sample(set, index, 0, 0, x, &label));
    assert_int_equal(label, wanted);
    for (int i = 0; i < 14 * 14 * 3; i++) {
        int c = i % 3;
        uint8_t v = value_at(number, i / 3 / 14 + (h - 14) / 2, i / 3 % 14 + (w - 14) / 2, c);
        assert_true(x[i] == ((float)v / 255 - mean[c]) / std[c]);
    }
}

static void test_folder_listing(void **state) {
    (void)state;
    char folder[TEST_PATH], spec[TEST_PATH + 32];
    make_set(folder, spec);
    dsc_dataset *train = open_folder(spec, DSC_SPLIT_TRAIN, 14), *val = open_folder(spec, DSC_SPLIT_VAL, 14);
    dsc_dataset_info info = dsc_dataset_get_info(train);
    assert_true(info.count == 4 && info.classes == 3 && info.h == 14 && info.w == 14 && info.c == 3);
    info = dsc_dataset_get_info(val);
    assert_true(info.count == 2 && info.classes == 3);
    check_middle(train, 0, 0, 16, 16, 0); /* ant */
    check_middle(train, 1, 1, 16, 16, 1); /* bee: in the order of the names */
    check_middle(train, 2, 2, 16, 16, 1);
    check_middle(train, 3, 3, 32, 16, 2);
    check_middle(val, 0, 5, 16, 16, 1); /* bee, although it is the first here */
    check_middle(val, 1, 4, 16, 32, 2);
    dsc_dataset_close(&train);
    dsc_dataset_close(&val);
    train = open_folder(spec, DSC_SPLIT_TRAIN, 0);
    assert_int_equal(dsc_dataset_get_info(train).h, 224);
    dsc_dataset_close(&train);
    test_remove(folder);
}

/* Compares training samples with the same steps done explicitly: the box, the resampling, the flip. */
static void test_folder_training(void **state) {
    (void)state;
    enum { S = 12 };
    char folder[TEST_PATH], spec[TEST_PATH + 32];
    make_set(folder, spec);
    dsc_dataset *set = open_folder(spec, DSC_SPLIT_TRAIN, S);
    static uint8_t image[32 * 16 * 3];
    for (int i = 0; i < 32 * 16 * 3; i++)
        image[i] = value_at(3, i / 3 / 16, i / 3 % 16, i % 3);
    int flips = 0;
    for (int64_t epoch = 0; epoch < 50; epoch++) {
        static float x[S * S * 3];
        int32_t label;
        assert_ok(dsc_dataset_sample(set, 3, 1, epoch, x, &label));
        dsc_rng rng = dsc_rng_start(42, DSC_RNG_AUGMENT, (uint32_t)epoch, 3);
        dsc_box box = dsc_box_draw(&rng, 32, 16);
        int flip = (int)(dsc_rng_u32(&rng) >> 31);
        flips += flip;
        dsc_resample_axis down = {32, box.y, box.h, S, 0, S}, across = {16, box.x, box.w, S, 0, S};
        for (int i = 0; i < S * S * 3; i++) {
            int64_t column = i / 3 % S;
            double v = naive_value(image, &down, &across, i / 3 / S, flip ? S - 1 - column : column, i % 3);
            double wanted = (v / 255 - (double)mean[i % 3]) / (double)std[i % 3];
            assert_true(fabs(x[i] - wanted) < 100 * 0x1p-24 * 5);
        }
    }
    assert_true(flips > 10 && flips < 40);
    dsc_dataset_close(&set);
    test_remove(folder);
}

static void expect_folder(const char *spec, dsc_split split, dsc_status wanted, const char *message) {
    dsc_dataset *set = NULL;
    assert_fails(wanted, message, dsc_dataset_open(spec, split, NULL, &set));
    assert_null(set);
}

static void test_folder_messages(void **state) {
    (void)state;
    char folder[TEST_PATH], spec[TEST_PATH + 32], path[TEST_PATH + 64];
    test_make_folder(folder);
    test_spec("imagefolder", folder, spec);
    expect_folder(spec, DSC_SPLIT_TRAIN, DSC_E_NOT_FOUND, "/train' is missing: put the images into");
    write_png(folder, "train/ant/0.png", 0, 16, 16);
    expect_folder(spec, DSC_SPLIT_TRAIN, DSC_E_FORMAT,
                  "/train' holds 1 class folders: at least 2 are needed");
    test_write(folder, "train/bee/x.txt", "x", 1);
    expect_folder(spec, DSC_SPLIT_TRAIN, DSC_E_FORMAT,
                  "/train/bee' holds no images (.jpg, .jpeg, .png, .webp)");
    write_png(folder, "train/bee/0.png", 0, 16, 16);
    expect_folder(spec, DSC_SPLIT_VAL, DSC_E_NOT_FOUND, "/val' is missing: put the validation images into");
    snprintf(path, sizeof path, "%s/val", folder);
    assert_int_equal(mkdir(path, 0777), 0);
    expect_folder(spec, DSC_SPLIT_VAL, DSC_E_FORMAT, "/val' holds no images");
    write_png(folder, "val/images/0.png", 0, 16, 16);
    expect_folder(spec, DSC_SPLIT_VAL, DSC_E_FORMAT, "/val/images' is not a class: there is no '");
    dsc_data_options options;
    dsc_data_options_init(&options);
    options.image_size = 5000;
    dsc_dataset *set = NULL;
    assert_fails(DSC_E_INVALID, "image size 5000: must be 1 to 4096",
                 dsc_dataset_open(spec, DSC_SPLIT_TRAIN, &options, &set));
    options.image_size = 32;
    options.resize = 31;
    assert_fails(DSC_E_INVALID, "images scaled to 31 pixels: must be 0, or 32 (their size) to 65536",
                 dsc_dataset_open(spec, DSC_SPLIT_TRAIN, &options, &set));
    options.resize = 0;
    options.mean = options.std = (const double[]){0.5, 0, 0.5};
    assert_fails(DSC_E_INVALID, "std 0: must be finite, and std above 0",
                 dsc_dataset_open(spec, DSC_SPLIT_TRAIN, &options, &set));
    options.std = NULL;
    assert_fails(DSC_E_INVALID, "give both or none", dsc_dataset_open(spec, DSC_SPLIT_TRAIN, &options, &set));
    if (geteuid() != 0) {
        snprintf(path, sizeof path, "%s/train/ant", folder);
        assert_int_equal(chmod(path, 0), 0);
        expect_folder(spec, DSC_SPLIT_TRAIN, DSC_E_IO, "Permission denied");
        assert_int_equal(chmod(path, 0777), 0);
    }
    test_remove(folder);
}

/* The other names of a validation split, and links to folders and files. */
static void test_folder_names(void **state) {
    (void)state;
    static const char *const names[] = {"test", "valid", "validation", "val"}; /* a later one is preferred */
    char folder[TEST_PATH], spec[TEST_PATH + 32], path[TEST_PATH + 64], name[64];
    float x[3];
    int32_t label;
    dsc_data_options options;
    dsc_data_options_init(&options);
    options.image_size = 1;
    test_make_folder(folder);
    test_spec("imagefolder", folder, spec);
    write_png(folder, "store/1/0.png", 0, 16, 16);
    write_png(folder, "train/bee/0.png", 0, 16, 16);
    snprintf(path, sizeof path, "%s/train/ant", folder);
    assert_int_equal(symlink("../store/1", path), 0);
    snprintf(path, sizeof path, "%s/train/bee/1.png", folder);
    assert_int_equal(symlink("../../store/1/0.png", path), 0);
    for (int i = 0; i < 4; i++) {
        dsc_dataset *set = NULL;
        for (int k = 0; k <= i; k++) {
            snprintf(name, sizeof name, "%s/ant/%d.png", names[i], k);
            write_png(folder, name, 0, 16, 16);
        }
        assert_ok(dsc_dataset_open(spec, DSC_SPLIT_VAL, &options, &set));
        assert_int_equal(dsc_dataset_get_info(set).count, i + 1);
        dsc_dataset_close(&set);
    }
    dsc_dataset *set = NULL;
    assert_ok(dsc_dataset_open(spec, DSC_SPLIT_TRAIN, &options, &set));
    assert_int_equal(dsc_dataset_get_info(set).count, 3);
    for (int64_t i = 0; i < 3; i++) {
        assert_ok(dsc_dataset_sample(set, i, 0, 0, x, &label));
        assert_int_equal(label, i > 0);
    }
    dsc_dataset_close(&set);
    test_remove(folder);
}

/* Files that break after the set was opened: sampling says which one. */
static void test_folder_broken_files(void **state) {
    (void)state;
    char folder[TEST_PATH], spec[TEST_PATH + 32], path[TEST_PATH + 64];
    float x[14 * 14 * 3];
    int32_t label;
    make_set(folder, spec);
    dsc_dataset *set = open_folder(spec, DSC_SPLIT_TRAIN, 14);
    test_write(folder, "train/cow/3.JPEG", "\0\0\0\0", 4);
    assert_fails(DSC_E_FORMAT, "imagefolder: '", dsc_dataset_sample(set, 3, 0, 0, x, &label));
    assert_fails(DSC_E_FORMAT, "/train/cow/3.JPEG' is no JPEG, PNG or WebP (4 bytes, starts 00 00 00 00)",
                 dsc_dataset_sample(set, 3, 0, 0, x, &label));
    snprintf(path, sizeof path, "%s/train/cow/3.JPEG", folder);
    assert_int_equal(unlink(path), 0);
    assert_fails(DSC_E_NOT_FOUND, "/train/cow/3.JPEG': No such file",
                 dsc_dataset_sample(set, 3, 0, 0, x, &label));
    assert_int_equal(mkfifo(path, 0666), 0);
    assert_fails(DSC_E_FORMAT, "is not a regular file", dsc_dataset_sample(set, 3, 0, 0, x, &label));
    check_middle(set, 2, 2, 16, 16, 1); /* the others are as before */
    dsc_dataset_close(&set);
    test_remove(folder);
}

static void test_folder_out_of_memory(void **state) {
    (void)state;
    char folder[TEST_PATH], spec[TEST_PATH + 32];
    make_set(folder, spec);
    for (int64_t n = 1;; n++) {
        dsc_dataset *set = NULL;
        float x[14 * 14 * 3];
        int32_t label;
        dsc_data_options options;
        dsc_data_options_init(&options);
        options.image_size = 14;
        dsc_memory_fail_at(n);
        dsc_status status = dsc_dataset_open(spec, DSC_SPLIT_TRAIN, &options, &set);
        if (status == DSC_OK)
            status = dsc_dataset_sample(set, 0, 1, 0, x, &label);
        dsc_memory_fail_at(0);
        dsc_dataset_close(&set);
        if (status == DSC_OK)
            break;
        assert_int_equal(status, DSC_E_MEMORY);
        assert_true(n < 1000);
    }
    test_remove(folder);
}
#endif

#ifdef DSC_HAVE_JPEG
/* A large smooth JPEG, for which decoding is reduced: close to what the unreduced image gives. */
static void test_folder_shrunk_jpeg(void **state) {
    (void)state;
    enum { H = 200, W = 300, S = 14 };
    static uint8_t pixels[H * W * 3], big[1 << 20];
    for (int y = 0; y < H; y++)
        for (int x = 0; x < W; x++)
            for (int c = 0; c < 3; c++)
                pixels[(y * W + x) * 3 + c] = (uint8_t)(x / 2 + y / 3 + 10 * c);
    char folder[TEST_PATH], spec[TEST_PATH + 32];
    test_make_folder(folder);
    test_spec("imagefolder", folder, spec);
    test_image image = {W, H, pixels};
    size_t size = test_jpeg(&image, TEST_RGB, 0, 0, sizeof big, big);
    test_write(folder, "train/a/0.jpg", big, size);
    test_write(folder, "train/b/0.jpg", big, size);
    dsc_data_options options;
    dsc_data_options_init(&options);
    options.image_size = S;
    dsc_dataset *set = NULL;
    assert_ok(dsc_dataset_open(spec, DSC_SPLIT_TRAIN, &options, &set));
    float x[S * S * 3];
    int32_t label;
    assert_ok(dsc_dataset_sample(set, 1, 0, 0, x, &label));
    const float means[3] = {0.485f, 0.456f, 0.406f}, stds[3] = {0.229f, 0.224f, 0.225f};
    dsc_resample_axis down = {H, 0, H, 16, 1, S}, across = {W, 0, W, 24, 5, S};
    for (int i = 0; i < S * S * 3; i++) {
        double v = ((double)x[i] * (double)stds[i % 3] + (double)means[i % 3]) * 255;
        /* the colour transform costs up to 2, both sides of the reduction up to 1 each */
        assert_true(fabs(v - naive_value(pixels, &down, &across, i / 3 / S, i / 3 % S, i % 3)) < 4);
    }
    dsc_dataset_close(&set);
    test_remove(folder);
}
#endif

int main(void) {
    const struct CMUnitTest tests[] = {
#ifdef DSC_HAVE_PNG
        cmocka_unit_test(test_png_kinds),       cmocka_unit_test(test_png_written),
        cmocka_unit_test(test_folder_listing),  cmocka_unit_test(test_folder_training),
        cmocka_unit_test(test_folder_messages), cmocka_unit_test(test_folder_broken_files),
        cmocka_unit_test(test_folder_names),    cmocka_unit_test(test_folder_out_of_memory),
#endif
#ifdef DSC_HAVE_JPEG
        cmocka_unit_test(test_jpeg_kinds),      cmocka_unit_test(test_folder_shrunk_jpeg),
#endif
#ifdef DSC_HAVE_JPEG
        cmocka_unit_test(test_large_jpeg),
#endif
#ifdef DSC_HAVE_WEBP
        cmocka_unit_test(test_webp_images),
#endif
        cmocka_unit_test(test_broken_images),   cmocka_unit_test(test_resample),
    };
    return cmocka_run_group_tests_name("data-images", tests, NULL, NULL);
}
