/* Element-wise operations and reductions of the cpu device: cut into parts, one kernel call each. */
#include "device/cpu/cpu.h"

#include "base/error.h"

#include <string.h>

/* Elements between two cuts: whole cache lines, so that no two threads write to one. */
enum { UNIT = 64 };

/* Runs `statement` for every part p of [0, n), with `first` and `count` set. A part is one thread's work. */
#define FOR_PARTS(n, statement)                                                                              \
    do {                                                                                                     \
        int parts_ = dsc_cpu_parts(q->device, (n));                                                          \
        _Pragma("omp parallel for num_threads(parts_) schedule(static, 1) if (parts_ > 1)") for (            \
            int p_ = 0; p_ < parts_; p_++) {                                                                 \
            dsc_cpu_range range_ = dsc_cpu_share((n), UNIT, parts_, p_);                                     \
            int64_t first = range_.first, count = range_.count;                                              \
            statement;                                                                                       \
        }                                                                                                    \
    } while (0)
