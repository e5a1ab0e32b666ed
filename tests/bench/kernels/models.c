/* The baseline of models.cu. */
#include "baseline.h"

#include <math.h>

void c_softmax(const float *restrict in, float *restrict out, int rows, int columns) {
#pragma omp parallel for
    for (int y = 0; y < rows; y++) {
        const float *row = in + y * columns;
        float top = row[0], sum = 0;
        for (int i = 1; i < columns; i++) top = row[i] > top ? row[i] : top;
        for (int i = 0; i < columns; i++) sum += out[y * columns + i] = expf(row[i] - top);
        for (int i = 0; i < columns; i++) out[y * columns + i] *= 1 / sum;
    }
}

void c_layernorm(const float *restrict in, const float *restrict gain, float *restrict out, int rows, int columns) {
#pragma omp parallel for
    for (int y = 0; y < rows; y++) {
        const float *row = in + y * columns;
        float sum = 0, squares = 0;
        for (int i = 0; i < columns; i++) sum += row[i], squares += row[i] * row[i];
        float mean = sum / columns, scale = 1 / sqrtf(squares / columns - mean * mean + 1e-5f);
        for (int i = 0; i < columns; i++) out[y * columns + i] = (row[i] - mean) * scale * gain[i];
    }
}

void c_attention(const float *restrict q, const float *restrict k, const float *restrict v, float *restrict out,
                 int length, int width) {
#pragma omp parallel for
    for (int query = 0; query < length; query++) {
        float scores[length], top = -INFINITY, total = 0, *sums = out + query * width;
        for (int key = 0; key < length; key++) {
            float score = 0;
            for (int d = 0; d < width; d++) score += q[query * width + d] * k[key * width + d];
            scores[key] = score * 0.125f;
            top = scores[key] > top ? scores[key] : top;
        }
        for (int d = 0; d < width; d++) sums[d] = 0;
        for (int key = 0; key < length; key++) {
            float weight = expf(scores[key] - top);
            total += weight;
            for (int d = 0; d < width; d++) sums[d] += weight * v[key * width + d];
        }
        for (int d = 0; d < width; d++) sums[d] /= total;
    }
}

void c_gelu(const float *restrict in, float *restrict out, int n) {
#pragma omp parallel for
    for (int i = 0; i < n; i++)
        out[i] = 0.5f * in[i] * (1 + tanhf(0.79788456f * (in[i] + 0.044715f * in[i] * in[i] * in[i])));
}
