typedef struct dsc_bytes {int a;} dsc_bytes;
