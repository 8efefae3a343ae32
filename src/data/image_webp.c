/* Decoding with libwebp. */
#include "base/config.h"
#include "base/error.h"
#include "data/image_decode.h"

#include <string.h>

#ifdef DSC_HAVE_WEBP
#include <webp/decode.h>
#endif

/* A RIFF file whose form is WEBP. */
int dsc_webp_is(const dsc_encoded *encoded) {
    return encoded->size >= 12 && memcmp(encoded->data, "RIFF", 4) == 0 &&
           memcmp(encoded->data + 8, "WEBP", 4) == 0;
}

#ifdef DSC_HAVE_WEBP
static const char *reason(VP8StatusCode code) {
    switch (code) {
    case VP8_STATUS_NOT_ENOUGH_DATA:
        return "the file ends too early";
    case VP8_STATUS_UNSUPPORTED_FEATURE:
        return "it uses a feature that libwebp does not support";
    case VP8_STATUS_OUT_OF_MEMORY:
        return "there is not enough memory";
    default:
        return "its data are damaged";
    }
}

static dsc_status fail(const dsc_encoded *e, VP8StatusCode code) {
    return DSC_FAIL(code == VP8_STATUS_OUT_OF_MEMORY ? DSC_E_MEMORY : DSC_E_FORMAT,
                    "'%s' is a broken WebP: %s", e->name, reason(code));
}

dsc_status dsc_webp_size(const dsc_encoded *encoded, int64_t *h, int64_t *w) {
    WebPBitstreamFeatures features;
    VP8StatusCode code = WebPGetFeatures(encoded->data, (size_t)encoded->size, &features);
    if (code != VP8_STATUS_OK)
        return fail(encoded, code);
    if (features.has_animation)
        return DSC_FAIL(DSC_E_FORMAT, "'%s' is an animated WebP: save one of its pictures alone",
                        encoded->name);
    *h = features.height;
    *w = features.width;
    return DSC_OK;
}

dsc_status dsc_webp_decode(const dsc_encoded *encoded, int64_t h, int64_t w, uint8_t *out) {
    WebPDecoderConfig config;
    if (!WebPInitDecoderConfig(&config))
        return DSC_FAIL(DSC_E_UNSUPPORTED, "'%s': libwebp is of another version than its headers",
                        encoded->name);
    config.output.colorspace = MODE_RGB;
    config.output.is_external_memory = 1;
    config.output.u.RGBA.rgba = out;
    config.output.u.RGBA.stride = (int)(3 * w);
    config.output.u.RGBA.size = (size_t)(3 * w * h);
    VP8StatusCode code = WebPDecode(encoded->data, (size_t)encoded->size, &config);
    WebPFreeDecBuffer(&config.output);
    return code == VP8_STATUS_OK ? DSC_OK : fail(encoded, code);
}
#else
dsc_status dsc_webp_size(const dsc_encoded *encoded, int64_t *h, int64_t *w) {
    (void)h, (void)w;
    return DSC_FAIL(DSC_E_UNSUPPORTED,
                    "'%s' is a WebP, which this build cannot read: install libwebp-dev and build again",
                    encoded->name);
}

dsc_status dsc_webp_decode(const dsc_encoded *encoded, int64_t h, int64_t w, uint8_t *out) {
    (void)out;
    return dsc_webp_size(encoded, &h, &w);
}
#endif
