/* The baseline of sparse.cu. */
#include "baseline.h"

#include <stdlib.h>
#include <string.h>

void c_spmv(const int *restrict starts, const int *restrict columns, const float *restrict values,
            const float *restrict x, float *restrict y, int rows) {
#pragma omp parallel for
    for (int row = 0; row < rows; row++) {
        float sum = 0;
        for (int at = starts[row]; at < starts[row + 1]; at++) sum += values[at] * x[columns[at]];
        y[row] = sum;
    }
}

void c_bfs_step(const int *restrict starts, const int *restrict neighbours, const int *restrict levels,
                int *restrict next, int level, int nodes) {
#pragma omp parallel for
    for (int node = 0; node < nodes; node++) {
        if (levels[node] != level) continue;
        for (int at = starts[node]; at < starts[node + 1]; at++)
            if (levels[neighbours[at]] < 0) next[neighbours[at]] = level + 1;
    }
}

static int by_size(const void *a, const void *b) {
    unsigned one = *(const unsigned *)a, other = *(const unsigned *)b;
    return one < other ? -1 : one > other;
}

void c_sort(const unsigned *restrict in, unsigned *restrict out, int n, int segment) {
    memcpy(out, in, n * sizeof *out);
#pragma omp parallel for
    for (int start = 0; start < n; start += segment) qsort(out + start, segment, sizeof *out, by_size);
}
