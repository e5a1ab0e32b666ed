// Clusters of thread blocks: cooperative groups, distributed shared memory, launches that state a
// cluster size and kernels that do, and the occupancy of clusters.
#include <cooperative_groups.h>
#include <cstdio>
#include <cstdlib>

namespace cg = cooperative_groups;

#define CHECK(call) check((call), #call, __LINE__)

static void check(cudaError_t error, const char *call, int line)
{
    if (error != cudaSuccess) {
        fprintf(stderr, "line %d: %s: %s\n", line, call, cudaGetErrorString(error));
        exit(1);
    }
}

constexpr int BINS = 96, BLOCK = 128, BLOCKS = 8, VALUES = 1 << 16;

// Each block of a cluster has a part of the bins in its shared memory, and counts into all of them.
__global__ void histogram(const int *values, int count, int *bins)
{
    extern __shared__ int part[];
    cg::cluster_group cluster = cg::this_cluster();
    const int blocks = cluster.num_blocks(), rank = cluster.block_rank(), each = BINS / blocks;
    for (int bin = threadIdx.x; bin < each; bin += blockDim.x)
        part[bin] = 0;
    cluster.sync();
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
        const int bin = values[i];
        atomicAdd(cluster.map_shared_rank(part, bin / each) + bin % each, 1);
    }
    cluster.sync();
    for (int bin = threadIdx.x; bin < each; bin += blockDim.x)
        atomicAdd(&bins[rank * each + bin], part[bin]);
}

// Passes a value round the blocks of a cluster; the shared memory of a block lives as long as others read it.
__global__ void __cluster_dims__(4, 1, 1) ring(int *out)
{
    __shared__ int cell;
    cg::cluster_group cluster = cg::this_cluster();
    const unsigned rank = cluster.block_rank(), next = (rank + 1) % cluster.num_blocks();
    if (threadIdx.x == 0)
        cell = 10 * blockIdx.x;
    for (unsigned round = 0; round < cluster.num_blocks(); round++) {
        cluster.sync();
        const int seen = *cluster.map_shared_rank(&cell, next);
        auto token = cluster.barrier_arrive();
        cluster.barrier_wait(std::move(token));
        if (threadIdx.x == 0)
            cell = seen + 1;
    }
    cluster.sync();
    if (threadIdx.x == 0)
        out[blockIdx.x] = cell + 1000 * cluster.query_shared_rank(&cell);
}

static void count(const int *values, const int *want, int cluster)
{
    int *device, *bins, got[BINS];
    CHECK(cudaMalloc(&device, VALUES * sizeof(int)));
    CHECK(cudaMalloc(&bins, sizeof got));
    CHECK(cudaMemcpy(device, values, VALUES * sizeof(int), cudaMemcpyHostToDevice));
    CHECK(cudaMemset(bins, 0, sizeof got));
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim.x = cluster;
    attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = BLOCKS;
    config.blockDim = BLOCK;
    config.dynamicSmemBytes = BINS / cluster * sizeof(int);
    config.attrs = &attribute;
    config.numAttrs = 1;
    int clusters = 0;
    CHECK(cudaOccupancyMaxActiveClusters(&clusters, histogram, &config));
    CHECK(cudaLaunchKernelEx(&config, histogram, (const int *)device, VALUES, bins));
    CHECK(cudaMemcpy(got, bins, sizeof got, cudaMemcpyDeviceToHost));
    for (int bin = 0; bin < BINS; bin++)
        if (got[bin] != want[bin]) {
            fprintf(stderr, "clusters of %d: bin %d is %d, not %d\n", cluster, bin, got[bin], want[bin]);
            exit(1);
        }
    if (clusters < 1) {
        fprintf(stderr, "no cluster of %d fits\n", cluster);
        exit(1);
    }
    CHECK(cudaFree(device));
    CHECK(cudaFree(bins));
}

int main()
{
    static int values[VALUES];
    int want[BINS] = {};
    unsigned state = 1;
    for (int &value : values) {
        state = state * 1664525 + 1013904223;
        value = (state >> 16) % BINS;
        want[value]++;
    }
    for (int cluster : {1, 2, 4, 8})
        count(values, want, cluster);

    int *out, got[BLOCKS];
    CHECK(cudaMalloc(&out, sizeof got));
    ring<<<BLOCKS, 64>>>(out);
    CHECK(cudaMemcpy(got, out, sizeof got, cudaMemcpyDeviceToHost));
    for (int block = 0; block < BLOCKS; block++)
        // After as many rounds as blocks the value is back, and every block has added one.
        if (got[block] != 10 * block + 4 + 1000 * (block % 4)) {
            fprintf(stderr, "block %d of the ring has %d\n", block, got[block]);
            return 1;
        }
    // Far from the GPU a refusal may be an error of a later call.
    ring<<<6, 64>>>(out);
    if (cudaGetLastError() == cudaSuccess && cudaDeviceSynchronize() == cudaSuccess) {
        fprintf(stderr, "a grid of 6 blocks ran in clusters of 4\n");
        return 1;
    }
    puts("PASS");
    return 0;
}
