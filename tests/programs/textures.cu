// Textures and surfaces as CUDA C++ programs use them: a picture turned with blended reads, and every shape of image, way of
// reading and boundary mode that follows, each compared with the same computed on the host. Nothing in it knows of Sluice.

#include <cuda_runtime.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#define CHECK(call)                                                                        \
    do {                                                                                   \
        cudaError_t error = (call);                                                        \
        if (error != cudaSuccess) {                                                        \
            printf("FAIL %s:%d %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(error)); \
            exit(1);                                                                       \
        }                                                                                  \
    } while (0)

static int failures = 0;

static void near(const char *what, float got, float want, float tolerance) {
    if (!(std::fabs(got - want) <= tolerance)) {
        if (failures++ < 20) printf("FAIL %s: %g, expected %g\n", what, got, want);
    }
}

template <class T>
static T *device(size_t count) {
    T *place;
    CHECK(cudaMalloc(&place, count * sizeof(T)));
    return place;
}

template <class T>
static std::vector<T> fetched(const T *place, size_t count) {
    std::vector<T> values(count);
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaMemcpy(values.data(), place, count * sizeof(T), cudaMemcpyDeviceToHost));
    return values;
}

static cudaTextureObject_t texture(const cudaResourceDesc &resource, cudaTextureFilterMode filter,
                                   cudaTextureAddressMode mode, bool normalized, cudaTextureReadMode read) {
    cudaTextureDesc desc = {};
    for (int i = 0; i < 3; i++) desc.addressMode[i] = mode;
    desc.filterMode = filter;
    desc.normalizedCoords = normalized;
    desc.readMode = read;
    desc.maxMipmapLevelClamp = 16;
    cudaTextureObject_t object;
    CHECK(cudaCreateTextureObject(&object, &resource, &desc, nullptr));
    return object;
}

static cudaResourceDesc of(cudaArray_t array) {
    cudaResourceDesc resource = {};
    resource.resType = cudaResourceTypeArray;
    resource.res.array.array = array;
    return resource;
}

// ---- A picture, turned ------------------------------------------------------------------------------------------------

__global__ void turn(float *out, int width, int height, float angle, cudaTextureObject_t picture) {
    int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= width || y >= height) return;
    float u = (float)x / width - 0.5f, v = (float)y / height - 0.5f;
    float tu = u * cosf(angle) - v * sinf(angle) + 0.5f, tv = v * cosf(angle) + u * sinf(angle) + 0.5f;
    out[y * width + x] = tex2D<float>(picture, tu, tv);
}

static int wrapped(int at, int size) { return ((at % size) + size) % size; }

static void turned_picture() {
    const int width = 64, height = 48;
    std::vector<float> picture(width * height);
    for (int i = 0; i < width * height; i++) picture[i] = (float)((i * 37) % 101) / 101;
    cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();
    cudaArray_t array;
    CHECK(cudaMallocArray(&array, &format, width, height));
    size_t row = width * sizeof(float);
    CHECK(cudaMemcpy2DToArray(array, 0, 0, picture.data(), row, row, height, cudaMemcpyHostToDevice));
    cudaTextureObject_t object = texture(of(array), cudaFilterModeLinear, cudaAddressModeWrap, true, cudaReadModeElementType);
    float *out = device<float>(width * height), angle = 0.5f;
    turn<<<dim3(4, 6), dim3(16, 8)>>>(out, width, height, angle, object);
    std::vector<float> got = fetched(out, width * height);
    for (int y = 0; y < height; y++) {
        for (int x = 0; x < width; x++) {
            float u = (float)x / width - 0.5f, v = (float)y / height - 0.5f;
            float tu = (u * cosf(angle) - v * sinf(angle) + 0.5f) * width - 0.5f;
            float tv = (v * cosf(angle) + u * sinf(angle) + 0.5f) * height - 0.5f;
            int i = (int)floorf(tu), j = (int)floorf(tv);
            float a = tu - i, b = tv - j;
            auto at = [&](int x, int y) { return picture[wrapped(y, height) * width + wrapped(x, width)]; };
            float want = (1 - a) * (1 - b) * at(i, j) + a * (1 - b) * at(i + 1, j) + (1 - a) * b * at(i, j + 1) +
                         a * b * at(i + 1, j + 1);
            near("a turned picture", got[y * width + x], want, 0.01f);
        }
    }
    cudaResourceDesc asked;
    CHECK(cudaGetTextureObjectResourceDesc(&asked, object));
    if (asked.resType != cudaResourceTypeArray || asked.res.array.array != array) failures++, printf("FAIL resource\n");
    CHECK(cudaDestroyTextureObject(object));
    CHECK(cudaFreeArray(array));
    CHECK(cudaFree(out));
}

// ---- Memory as it lies ------------------------------------------------------------------------------------------------

__global__ void fetch_linear(int *out, cudaTextureObject_t object, int count) {
    int i = threadIdx.x;
    if (i < count) out[i] = tex1Dfetch<int>(object, i - 2);
}

__global__ void read_pitched(float *out, cudaTextureObject_t object) {
    float4 color = tex2D<float4>(object, threadIdx.x + 0.5f, threadIdx.y + 0.5f);
    out[threadIdx.y * blockDim.x + threadIdx.x] = color.x + 2 * color.y + 4 * color.z + 8 * color.w;
}

static void memory_as_it_lies() {
    std::vector<int> values(30);
    for (int i = 0; i < 30; i++) values[i] = 1000 - i;
    int *line = device<int>(30), *out = device<int>(40);
    CHECK(cudaMemcpy(line, values.data(), 120, cudaMemcpyHostToDevice));
    cudaResourceDesc resource = {};
    resource.resType = cudaResourceTypeLinear;
    resource.res.linear.devPtr = line;
    resource.res.linear.desc = cudaCreateChannelDesc<int>();
    resource.res.linear.sizeInBytes = 120;
    cudaTextureObject_t object = texture(resource, cudaFilterModePoint, cudaAddressModeClamp, false, cudaReadModeElementType);
    fetch_linear<<<1, 64>>>(out, object, 40);
    std::vector<int> got = fetched(out, 40);
    for (int i = 0; i < 40; i++) near("linear memory", got[i], i >= 2 && i < 32 ? 1002 - i : 0, 0);
    CHECK(cudaDestroyTextureObject(object));

    const int width = 12, height = 5;
    unsigned char *rows;
    size_t pitch;
    CHECK(cudaMallocPitch(&rows, &pitch, width * 4, height));
    std::vector<unsigned char> pixels(width * height * 4);
    for (size_t i = 0; i < pixels.size(); i++) pixels[i] = (unsigned char)(i * 7);
    CHECK(cudaMemcpy2D(rows, pitch, pixels.data(), width * 4, width * 4, height, cudaMemcpyHostToDevice));
    resource = {};
    resource.resType = cudaResourceTypePitch2D;
    resource.res.pitch2D.devPtr = rows;
    resource.res.pitch2D.desc = cudaCreateChannelDesc<uchar4>();
    resource.res.pitch2D.width = width;
    resource.res.pitch2D.height = height;
    resource.res.pitch2D.pitchInBytes = pitch;
    object = texture(resource, cudaFilterModePoint, cudaAddressModeClamp, false, cudaReadModeNormalizedFloat);
    float *sums = device<float>(width * height);
    read_pitched<<<1, dim3(width, height)>>>(sums, object);
    std::vector<float> mixed = fetched(sums, width * height);
    for (int i = 0; i < width * height; i++) {
        const unsigned char *p = &pixels[i * 4];
        near("colours", mixed[i], (p[0] + 2 * p[1] + 4 * p[2] + 8 * p[3]) / 255.0f, 1e-4f);
    }
    CHECK(cudaDestroyTextureObject(object));
    CHECK(cudaFree(rows));
}

// ---- Solids, layers, levels -------------------------------------------------------------------------------------------

__global__ void read_solid(float *out, cudaTextureObject_t solid) {
    out[(threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x] =
        tex3D<float>(solid, threadIdx.x + 1.0f, threadIdx.y + 0.5f, threadIdx.z + 0.5f);
}

__global__ void read_layers(float *out, cudaTextureObject_t layers) {
    out[threadIdx.y * blockDim.x + threadIdx.x] = tex2DLayered<float>(layers, threadIdx.x + 0.5f, 1.5f, threadIdx.y);
}

__global__ void read_levels(float *out, cudaTextureObject_t levels) {
    out[threadIdx.x] = tex2DLod<float>(levels, 0.5f, 0.5f, threadIdx.x * 0.5f);
}

__global__ void read_around(float4 *out, cudaTextureObject_t plane) { *out = tex2Dgather<float4>(plane, 2.0f, 2.0f, 0); }

static cudaArray_t solid_array(std::vector<float> &values, cudaExtent extent, unsigned flags) {
    cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();
    cudaArray_t array;
    CHECK(cudaMalloc3DArray(&array, &format, extent, flags));
    for (size_t i = 0; i < values.size(); i++) values[i] = (float)i;
    cudaMemcpy3DParms copy = {};
    copy.srcPtr = make_cudaPitchedPtr(values.data(), extent.width * sizeof(float), extent.width, extent.height);
    copy.dstArray = array;
    copy.extent = make_cudaExtent(extent.width, extent.height, extent.depth ? extent.depth : 1);
    copy.kind = cudaMemcpyHostToDevice;
    CHECK(cudaMemcpy3D(&copy));
    return array;
}

static void solids_layers_levels() {
    const int w = 6, h = 4, d = 3;
    std::vector<float> values(w * h * d);
    cudaArray_t solid = solid_array(values, make_cudaExtent(w, h, d), 0);
    cudaTextureObject_t object = texture(of(solid), cudaFilterModeLinear, cudaAddressModeClamp, false, cudaReadModeElementType);
    float *out = device<float>(w * h * d);
    read_solid<<<1, dim3(w, h, d)>>>(out, object);
    std::vector<float> got = fetched(out, w * h * d);
    for (int i = 0; i < w * h * d; i++) near("a solid", got[i], i % w == w - 1 ? i : i + 0.5f, 1e-3f);
    CHECK(cudaDestroyTextureObject(object));
    CHECK(cudaFreeArray(solid));

    cudaArray_t layers = solid_array(values, make_cudaExtent(w, h, d), cudaArrayLayered);
    object = texture(of(layers), cudaFilterModePoint, cudaAddressModeClamp, false, cudaReadModeElementType);
    read_layers<<<1, dim3(w, d)>>>(out, object);
    got = fetched(out, w * d);
    for (int i = 0; i < w * d; i++) near("layers", got[i], (i / w) * w * h + w + i % w, 0);
    CHECK(cudaDestroyTextureObject(object));
    CHECK(cudaFreeArray(layers));

    cudaArray_t plane = solid_array(values, make_cudaExtent(w, h, 0), cudaArrayTextureGather);
    object = texture(of(plane), cudaFilterModePoint, cudaAddressModeClamp, false, cudaReadModeElementType);
    float4 *four = device<float4>(1);
    read_around<<<1, 1>>>(four, object);
    float4 around = fetched(four, 1)[0];
    near("around, lower left", around.x, 2 * w + 1, 0);
    near("around, lower right", around.y, 2 * w + 2, 0);
    near("around, upper right", around.z, w + 2, 0);
    near("around, upper left", around.w, w + 1, 0);
    CHECK(cudaDestroyTextureObject(object));
    CHECK(cudaFreeArray(plane));

    cudaChannelFormatDesc format = cudaCreateChannelDesc<float>();
    cudaMipmappedArray_t pyramid;
    CHECK(cudaMallocMipmappedArray(&pyramid, &format, make_cudaExtent(8, 8, 0), 3));
    for (int level = 0; level < 3; level++) {
        cudaArray_t array;
        CHECK(cudaGetMipmappedArrayLevel(&array, pyramid, level));
        int side = 8 >> level;
        std::vector<float> flat(side * side, 10.0f * level);
        CHECK(cudaMemcpy2DToArray(array, 0, 0, flat.data(), side * 4, side * 4, side, cudaMemcpyHostToDevice));
    }
    cudaResourceDesc resource = {};
    resource.resType = cudaResourceTypeMipmappedArray;
    resource.res.mipmap.mipmap = pyramid;
    cudaTextureDesc desc = {};
    desc.normalizedCoords = 1;
    desc.filterMode = cudaFilterModeLinear;
    desc.mipmapFilterMode = cudaFilterModeLinear;
    desc.maxMipmapLevelClamp = 2;
    CHECK(cudaCreateTextureObject(&object, &resource, &desc, nullptr));
    read_levels<<<1, 6>>>(out, object);
    got = fetched(out, 6);
    for (int i = 0; i < 6; i++) near("levels", got[i], 5.0f * (i < 4 ? i : 4), 1e-3f);
    CHECK(cudaDestroyTextureObject(object));
    CHECK(cudaFreeMipmappedArray(pyramid));
}

// ---- Surfaces ---------------------------------------------------------------------------------------------------------

__global__ void paint(cudaSurfaceObject_t to) {
    int x = threadIdx.x, y = threadIdx.y;
    surf2Dwrite(make_float4(x, y, x * y, 1), to, x * (int)sizeof(float4), y);
    // Outside: nothing.
    surf2Dwrite(make_float4(-1, -1, -1, -1), to, 1000 * (int)sizeof(float4), y, cudaBoundaryModeZero);
}

__global__ void add_up(float *out, cudaSurfaceObject_t from) {
    int x = threadIdx.x, y = threadIdx.y;
    float4 here = surf2Dread<float4>(from, x * (int)sizeof(float4), y);
    float4 outside = surf2Dread<float4>(from, -16, y, cudaBoundaryModeZero);
    float4 clamped = surf2Dread<float4>(from, 1000 * (int)sizeof(float4), y, cudaBoundaryModeClamp);
    out[y * blockDim.x + x] = here.x + 100 * here.z + outside.w + 1000 * clamped.x;
}

static void surfaces() {
    const int w = 8, h = 4;
    cudaChannelFormatDesc format = cudaCreateChannelDesc<float4>();
    cudaArray_t array;
    CHECK(cudaMallocArray(&array, &format, w, h, cudaArraySurfaceLoadStore));
    cudaResourceDesc resource = of(array);
    cudaSurfaceObject_t object;
    CHECK(cudaCreateSurfaceObject(&object, &resource));
    paint<<<1, dim3(w, h)>>>(object);
    float *out = device<float>(w * h);
    add_up<<<1, dim3(w, h)>>>(out, object);
    std::vector<float> got = fetched(out, w * h);
    for (int i = 0; i < w * h; i++) near("a surface", got[i], i % w + 100 * (i % w) * (i / w) + 1000 * (w - 1), 0);
    std::vector<float4> pixels(w * h);
    CHECK(cudaMemcpy2DFromArray(pixels.data(), w * 16, array, 0, 0, w * 16, h, cudaMemcpyDeviceToHost));
    for (int i = 0; i < w * h; i++) near("what was painted", pixels[i].y, i / w, 0);
    CHECK(cudaDestroySurfaceObject(object));
    CHECK(cudaFreeArray(array));
}

int main() {
    setvbuf(stdout, nullptr, _IOLBF, 0);  // what has passed is told also if the rest crashes
    turned_picture();
    memory_as_it_lies();
    solids_layers_levels();
    surfaces();
    printf(failures ? "FAIL: %d values differ\n" : "PASS\n", failures);
    return failures != 0;
}
