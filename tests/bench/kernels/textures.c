/* The baseline of textures.cu: images in plain memory. */
#include "baseline.h"

#include <math.h>

static int clamped(int at, int n) { return at < 0 ? 0 : at >= n ? n - 1 : at; }

void c_bilinear(const float *restrict in, float *restrict out, int n, float cosine, float sine) {
#pragma omp parallel for
    for (int y = 0; y < n; y++)
        for (int x = 0; x < n; x++) {
            float u = x - 0.5f * n, v = y - 0.5f * n;
            float column = u * cosine - v * sine + 0.5f * n - 0.5f, row = u * sine + v * cosine + 0.5f * n - 0.5f;
            float left = floorf(column), top = floorf(row), a = column - left, b = row - top;
            int x0 = clamped(left, n), x1 = clamped(left + 1, n), y0 = clamped(top, n), y1 = clamped(top + 1, n);
            float upper = in[y0 * n + x0] * (1 - a) + in[y0 * n + x1] * a;
            float lower = in[y1 * n + x0] * (1 - a) + in[y1 * n + x1] * a;
            out[y * n + x] = upper * (1 - b) + lower * b;
        }
}

void c_box(const float *restrict in, float *restrict out, int n) {
#pragma omp parallel for
    for (int y = 0; y < n; y++)
        for (int x = 0; x < n; x++) {
            float sum = 0;
            for (int dy = -1; dy <= 1; dy++)
                for (int dx = -1; dx <= 1; dx++) sum += in[clamped(y + dy, n) * n + clamped(x + dx, n)];
            out[y * n + x] = sum * (1.0f / 9.0f);
        }
}
