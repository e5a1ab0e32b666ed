// Tensor maps: tiles of a matrix come to shared memory and go back by tensor copies, also beyond the matrix's edges,
// with and without swizzling, and through a map whose address was replaced.
#include <cuda.h>
#include <cuda/barrier>
#include <cuda/ptx>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace ptx = cuda::ptx;
using Barrier = cuda::barrier<cuda::thread_scope_block>;

#define CHECK(call) check((call), #call, __LINE__)

static void check(cudaError_t error, const char *call, int line)
{
    if (error != cudaSuccess) {
        fprintf(stderr, "line %d: %s: %s\n", line, call, cudaGetErrorString(error));
        exit(1);
    }
}

static void expect(bool holds, const char *what, int i)
{
    if (!holds) {
        fprintf(stderr, "%s: wrong at %d\n", what, i);
        exit(1);
    }
}

constexpr int WIDTH = 300, HEIGHT = 130, PITCH = 304, TILE_X = 32, TILE_Y = 16;

// Adds to each element the number of its tile's column, in place. The grid covers the matrix, so some tiles are beyond it in
// part.
template <int SWIZZLE> __global__ void add_column(const __grid_constant__ CUtensorMap map)
{
    __shared__ alignas(1024) int tile[TILE_Y][TILE_X];
    __shared__ alignas(8) unsigned char storage[sizeof(Barrier)];
    Barrier &barrier = *reinterpret_cast<Barrier *>(storage);
    const int x = blockIdx.x * TILE_X, y = blockIdx.y * TILE_Y;
    if (threadIdx.x == 0) {
        init(&barrier, blockDim.x);
        ptx::fence_proxy_async(ptx::space_shared);
    }
    __syncthreads();
    Barrier::arrival_token token;
    if (threadIdx.x == 0) {
        const int at[2] = {x, y};
        ptx::cp_async_bulk_tensor(ptx::space_cluster, ptx::space_global, tile, &map, at,
                                  cuda::device::barrier_native_handle(barrier));
        token = cuda::device::barrier_arrive_tx(barrier, 1, sizeof(tile));
    } else {
        token = barrier.arrive();
    }
    barrier.wait(std::move(token));
    for (int i = threadIdx.x; i < TILE_X * TILE_Y; i += blockDim.x) {
        const int row = i / TILE_X, column = i % TILE_X;
        // 4 words are the piece that is swizzled by the number of its row.
        const int there = SWIZZLE ? ((column / 4) ^ (row % 8)) * 4 + column % 4 : column;
        const bool inside = x + column < WIDTH && y + row < HEIGHT;
        if (!inside && tile[row][there] != 0)
            __trap();
        tile[row][there] += column;
    }
    ptx::fence_proxy_async(ptx::space_shared);
    __syncthreads();
    if (threadIdx.x == 0) {
        const int at[2] = {x, y};
        ptx::cp_async_bulk_tensor(ptx::space_global, ptx::space_shared, &map, at, tile);
        ptx::cp_async_bulk_commit_group();
        ptx::cp_async_bulk_wait_group_read(ptx::n32_t<0>());
    }
}

using Encode = decltype(&cuTensorMapEncodeTiled);
using Replace = decltype(&cuTensorMapReplaceAddress);

template <typename Function> static Function entry(const char *name)
{
    void *function = nullptr;
    cudaDriverEntryPointQueryResult result;
    CHECK(cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &result));
    expect(result == cudaDriverEntryPointSuccess, name, 0);
    return (Function)function;
}

static CUresult encode(CUtensorMap *map, int *data, CUtensorMapSwizzle swizzle, cuuint32_t tile_x)
{
    static const auto function = entry<Encode>("cuTensorMapEncodeTiled");
    const cuuint64_t sizes[2] = {WIDTH, HEIGHT}, strides[1] = {PITCH * sizeof(int)};
    const cuuint32_t box[2] = {tile_x, TILE_Y}, steps[2] = {1, 1};
    return function(map, CU_TENSOR_MAP_DATA_TYPE_INT32, 2, data, sizes, strides, box, steps,
                    CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                    CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
}

static void check_matrix(const int *device, const std::vector<int> &before, int times, const char *what)
{
    std::vector<int> after(before.size());
    CHECK(cudaMemcpy(after.data(), device, after.size() * sizeof(int), cudaMemcpyDeviceToHost));
    for (int i = 0; i < PITCH * HEIGHT; i++) {
        const int column = i % PITCH, added = column < WIDTH ? column % TILE_X * times : 0;
        expect(after[i] == before[i] + added, what, i);
    }
}

int main()
{
    std::vector<int> before(PITCH * HEIGHT);
    for (size_t i = 0; i < before.size(); i++)
        before[i] = int(i * 2654435761u >> 8);
    int *first, *second;
    const size_t bytes = before.size() * sizeof(int);
    CHECK(cudaMalloc(&first, bytes));
    CHECK(cudaMalloc(&second, bytes));
    for (int *matrix : {first, second})
        CHECK(cudaMemcpy(matrix, before.data(), bytes, cudaMemcpyHostToDevice));
    const dim3 grid((WIDTH + TILE_X - 1) / TILE_X, (HEIGHT + TILE_Y - 1) / TILE_Y);

    CUtensorMap plain, swizzled;
    expect(encode(&plain, first, CU_TENSOR_MAP_SWIZZLE_NONE, TILE_X) == CUDA_SUCCESS, "encode", 0);
    add_column<0><<<grid, 64>>>(plain);
    CHECK(cudaDeviceSynchronize());
    check_matrix(first, before, 1, "plain");

    expect(encode(&swizzled, first, CU_TENSOR_MAP_SWIZZLE_128B, TILE_X) == CUDA_SUCCESS, "encode", 1);
    add_column<1><<<grid, 64>>>(swizzled);
    CHECK(cudaDeviceSynchronize());
    check_matrix(first, before, 2, "swizzled");

    expect(entry<Replace>("cuTensorMapReplaceAddress")(&plain, second) == CUDA_SUCCESS, "replace", 0);
    add_column<0><<<grid, 64>>>(plain);
    CHECK(cudaDeviceSynchronize());
    check_matrix(second, before, 1, "another address");
    check_matrix(first, before, 2, "the address before");

    // Rows of 124 bytes are no multiple of 16, and 256 bytes do not fit into a swizzle of 128.
    expect(encode(&plain, first, CU_TENSOR_MAP_SWIZZLE_NONE, 31) == CUDA_ERROR_INVALID_VALUE, "rows", 0);
    expect(encode(&plain, first, CU_TENSOR_MAP_SWIZZLE_128B, 64) == CUDA_ERROR_INVALID_VALUE, "swizzle", 0);
    expect(encode(&plain, first + 1, CU_TENSOR_MAP_SWIZZLE_NONE, 32) == CUDA_ERROR_INVALID_VALUE, "address", 0);
    puts("PASS");
    return 0;
}
