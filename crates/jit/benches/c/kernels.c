// The computations of the benchmark in plain C, for `gcc -O3 -march=native -fopenmp`.

#include <stddef.h>

void saxpy(float a, const float *x, float *y, size_t n) {
#pragma omp parallel for
    for (size_t i = 0; i < n; i++)
        y[i] = a * x[i] + y[i];
}

enum { TILE = 32 };

// C = A * B for square matrices of n (a multiple of 32), by tiles of 32 x 32 as the kernel does it.
void sgemm(const float *a, const float *b, float *c, size_t n) {
#pragma omp parallel for collapse(2)
    for (size_t row = 0; row < n; row += TILE)
        for (size_t column = 0; column < n; column += TILE) {
            float sum[TILE][TILE] = {{0}};
            float left[TILE][TILE], right[TILE][TILE];
            for (size_t step = 0; step < n; step += TILE) {
                for (size_t i = 0; i < TILE; i++)
                    for (size_t j = 0; j < TILE; j++) {
                        left[i][j] = a[(row + i) * n + step + j];
                        right[i][j] = b[(step + i) * n + column + j];
                    }
                for (size_t i = 0; i < TILE; i++)
                    for (size_t k = 0; k < TILE; k++)
                        for (size_t j = 0; j < TILE; j++)
                            sum[i][j] += left[i][k] * right[k][j];
            }
            for (size_t i = 0; i < TILE; i++)
                for (size_t j = 0; j < TILE; j++)
                    c[(row + i) * n + column + j] = sum[i][j];
        }
}

float sum(const float *x, size_t n) {
    float total = 0;
#pragma omp parallel for reduction(+ : total)
    for (size_t i = 0; i < n; i++)
        total += x[i];
    return total;
}

// The same with the order of additions given up, which is what the tree does too.
float sum_simd(const float *x, size_t n) {
    float total = 0;
#pragma omp parallel for simd reduction(+ : total)
    for (size_t i = 0; i < n; i++)
        total += x[i];
    return total;
}
