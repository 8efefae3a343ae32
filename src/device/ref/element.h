/* Reads and writes the elements of a tensor as doubles, whatever their type, so that one implementation of an operation
 * serves all types. */
#ifndef DSC_DEVICE_REF_ELEMENT_H
#define DSC_DEVICE_REF_ELEMENT_H

#include "device/half.h"
#include "device/table.h"

static inline double get(const dsc_tensor *t, int64_t i) {
    switch (t->dtype) {
    case DSC_F32:
        return ((const float *)t->data)[i];
    case DSC_F64:
        return ((const double *)t->data)[i];
    case DSC_BF16:
        return dsc_bf16_to_float(((const uint16_t *)t->data)[i]);
    case DSC_F16:
        return dsc_f16_to_float(((const uint16_t *)t->data)[i]);
    case DSC_I32:
        return ((const int32_t *)t->data)[i];
    case DSC_I64:
        return (double)((const int64_t *)t->data)[i];
    case DSC_U8:
        return ((const uint8_t *)t->data)[i];
    }
    return 0;
}

static inline void set(dsc_tensor *t, int64_t i, double value) {
    switch (t->dtype) {
    case DSC_F32:
        ((float *)t->data)[i] = (float)value;
        break;
    case DSC_F64:
        ((double *)t->data)[i] = value;
        break;
    case DSC_BF16:
        ((uint16_t *)t->data)[i] = dsc_bf16_from_double(value);
        break;
    case DSC_F16:
        ((uint16_t *)t->data)[i] = dsc_f16_from_double(value);
        break;
    case DSC_I32:
        ((int32_t *)t->data)[i] = (int32_t)value;
        break;
    case DSC_I64:
        ((int64_t *)t->data)[i] = (int64_t)value;
        break;
    case DSC_U8:
        ((uint8_t *)t->data)[i] = (uint8_t)value;
        break;
    }
}

/* t[i] = beta t[i] + value; with beta 0 the old contents are not read. */
static inline void update(dsc_tensor *t, int64_t i, double beta, double value) {
    set(t, i, beta == 0 ? value : beta * get(t, i) + value);
}

/* The index of element (i, j) of a matrix, and of element (n, h, w, c) of an NHWC (or OHWI) tensor. */
static inline int64_t at2(const dsc_tensor *t, int64_t i, int64_t j) {
    return i * t->dim[1] + j;
}

static inline int64_t at4(const dsc_tensor *t, int64_t n, int64_t h, int64_t w, int64_t c) {
    return ((n * t->dim[1] + h) * t->dim[2] + w) * t->dim[3] + c;
}

#endif
