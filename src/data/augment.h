#include <stdint.h>
typedef struct dsc_normalise {int a;} dsc_normalise;
typedef struct dsc_sample_key {int a;} dsc_sample_key;
