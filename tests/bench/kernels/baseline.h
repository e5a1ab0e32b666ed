/* What the kernels compute, in C. Built with `gcc -O3 -march=native -fopenmp`, so that sums keep their order as the
 * language says. Matrices are square, row after row. */
#pragma once
#ifdef __cplusplus
extern "C" {
typedef __half f16;
#else
typedef _Float16 f16;
#endif
/* The bits of a bfloat16, for which C has no type here. */
typedef unsigned short bf16;

void c_saxpy(float a, const float *x, float *y, int n);
void c_daxpy(double a, const double *x, double *y, int n);
void c_haxpy(float a, const f16 *x, f16 *y, int n);
void c_bfloat_relu(float a, const bf16 *x, const bf16 *y, bf16 *out, int n);
void c_transpose(const float *in, float *out, int n);
void c_gather(const float *x, const int *index, float *out, int n);
void c_quantize(const float *x, signed char *out, float scale, int n);

void c_sgemm(const float *a, const float *b, float *c, int n);
void c_dgemm(const double *a, const double *b, double *c, int n);
void c_hgemm(const f16 *a, const f16 *b, float *c, int n);
void c_bgemm(const bf16 *a, const bf16 *b, float *c, int n);
/* The second matrix is transposed. */
void c_igemm(const signed char *a, const signed char *b, int *c, int n);
void c_sgemv(const float *a, const float *x, float *y, int n);

void c_sum(const float *x, float *sum, int n);
void c_dot(const double *x, const double *y, double *sum, int n);
/* Running sums of each `segment` numbers. */
void c_scan(const float *in, float *out, int n, int segment);
void c_histogram(const unsigned char *in, unsigned *bins, int n);
void c_histogram_wide(const unsigned *in, unsigned *bins, int n, unsigned count);

void c_stencil5(const float *in, float *out, int n);
void c_stencil7(const float *in, float *out, int n);
void c_convolution(const float *in, const float *weights, float *out, int n);

void c_spmv(const int *starts, const int *columns, const float *values, const float *x, float *y, int rows);
void c_bfs_step(const int *starts, const int *neighbours, const int *levels, int *next, int level, int nodes);
/* Sorts each `segment` numbers. */
void c_sort(const unsigned *in, unsigned *out, int n, int segment);

void c_bilinear(const float *in, float *out, int n, float cosine, float sine);
void c_box(const float *in, float *out, int n);

void c_softmax(const float *in, float *out, int rows, int columns);
void c_layernorm(const float *in, const float *gain, float *out, int rows, int columns);
void c_attention(const float *q, const float *k, const float *v, float *out, int length, int width);
void c_gelu(const float *in, float *out, int n);

void c_black_scholes(const float *price, const float *strike, const float *years, float *out, int n);
void c_mandelbrot(int *out, int n, int steps);
void c_collatz(int *out, int n);
void c_nbody(const float *bodies, float *forces, int n);
void c_hash(unsigned *out, int n, int rounds);
void c_waves(const float *in, float *out, int n);
#ifdef __cplusplus
}
#endif
