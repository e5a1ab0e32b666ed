// Conditional nodes of graphs with the CUDA runtime, as `nvcc conditionals.cu` builds it: static runtime, default options. Loops,
// branches and switches that kernels decide with `cudaGraphSetConditional`; one body made node by node, others captured.
// Compares with what the CPU says and exits with the number of failures.

#include <cstdio>
#include <cstdlib>

static int failures = 0;

#define CUDA(call)                                                                          \
    do {                                                                                    \
        cudaError_t error = (call);                                                         \
        if (error != cudaSuccess) {                                                         \
            printf("FAIL %s:%d: %s: %s\n", __FILE__, __LINE__, #call, cudaGetErrorString(error)); \
            exit(1);                                                                        \
        }                                                                                   \
    } while (0)

static void equal(const char* name, unsigned found, unsigned expected) {
    bool good = found == expected;
    printf("%s %s: %u\n", good ? "ok  " : "FAIL", name, found);
    failures += !good;
}

struct Numbers {
    unsigned value, rounds, last, odd, even;
};

// One round of the Collatz sequence; the loop goes on until it is at one.
__global__ void step(Numbers* numbers, cudaGraphConditionalHandle goes_on) {
    unsigned value = numbers->value;
    numbers->value = value % 2 ? 3 * value + 1 : value / 2;
    numbers->rounds++;
    cudaGraphSetConditional(goes_on, numbers->value != 1);
}

// Many threads, of which the first that finds its number decides: two paths lead to the call.
__global__ void choose(const Numbers* numbers, cudaGraphConditionalHandle handle, unsigned ways) {
    unsigned thread = blockIdx.x * blockDim.x + threadIdx.x;
    if (thread != numbers->value) return;
    if (thread < ways)
        cudaGraphSetConditional(handle, thread);
    else
        cudaGraphSetConditional(handle, ways);
}

__global__ void is_odd(const Numbers* numbers, cudaGraphConditionalHandle odd) {
    if (threadIdx.x == 0) cudaGraphSetConditional(odd, numbers->value & 1);
}

__global__ void add(unsigned* word, unsigned value) { *word += value; }

static Numbers* numbers;
static cudaStream_t stream;

static Numbers launch(cudaGraph_t graph, unsigned value, int times = 1) {
    cudaGraphExec_t executable;
    Numbers it = {value, 0, 0, 0, 0};
    CUDA(cudaGraphInstantiate(&executable, graph, 0));
    for (int i = 0; i < times; i++) {
        CUDA(cudaMemcpyAsync(numbers, &it, sizeof it, cudaMemcpyHostToDevice, stream));
        CUDA(cudaGraphLaunch(executable, stream));
    }
    CUDA(cudaMemcpyAsync(&it, numbers, sizeof it, cudaMemcpyDeviceToHost, stream));
    CUDA(cudaStreamSynchronize(stream));
    CUDA(cudaGraphExecDestroy(executable));
    return it;
}

static cudaGraphNode_t kernel(cudaGraph_t graph, const cudaGraphNode_t* before, void* function, unsigned threads, void** arguments) {
    cudaKernelNodeParams params = {};
    params.func = function;
    params.gridDim = dim3(1);
    params.blockDim = dim3(threads);
    params.kernelParams = arguments;
    cudaGraphNode_t node;
    CUDA(cudaGraphAddKernelNode(&node, graph, before, before != nullptr, &params));
    return node;
}

static cudaGraphNode_t conditional(cudaGraph_t graph, const cudaGraphNode_t* before, cudaGraphConditionalHandle handle,
                                   cudaGraphConditionalNodeType type, unsigned size, cudaGraph_t* bodies) {
    cudaGraphNodeParams params = {};
    params.type = cudaGraphNodeTypeConditional;
    params.conditional.handle = handle;
    params.conditional.type = type;
    params.conditional.size = size;
    cudaGraphNode_t node;
    CUDA(cudaGraphAddNode(&node, graph, before, nullptr, before != nullptr, &params));
    for (unsigned i = 0; i < size; i++) bodies[i] = params.conditional.phGraph_out[i];
    return node;
}

// What is launched in the stream becomes the body.
template <typename Work>
static void capture(cudaGraph_t body, Work work) {
    CUDA(cudaStreamBeginCaptureToGraph(stream, body, nullptr, nullptr, 0, cudaStreamCaptureModeRelaxed));
    work();
    CUDA(cudaStreamEndCapture(stream, nullptr));
}

static unsigned collatz(unsigned value) {
    unsigned rounds = 0;
    do {
        value = value % 2 ? 3 * value + 1 : value / 2;
        rounds++;
    } while (value != 1);
    return rounds;
}

static void loop() {
    cudaGraph_t graph, body;
    cudaGraphConditionalHandle handle;
    CUDA(cudaGraphCreate(&graph, 0));
    CUDA(cudaGraphConditionalHandleCreate(&handle, graph, 1, cudaGraphCondAssignDefault));
    cudaGraphNode_t node = conditional(graph, nullptr, handle, cudaGraphCondTypeWhile, 1, &body);
    void* round[] = {&numbers, &handle};
    kernel(body, nullptr, (void*)step, 1, round);
    unsigned *last = &numbers->last, seven = 7;
    void* after[] = {&last, &seven};
    kernel(graph, &node, (void*)add, 1, after);
    for (unsigned value : {6u, 27u, 1u}) {
        Numbers it = launch(graph, value);
        equal("rounds of a loop", it.rounds, collatz(value));
        equal("what comes after a loop", it.last, 7);
    }
    equal("rounds, launched again", launch(graph, 9, 3).rounds, collatz(9));
    CUDA(cudaGraphDestroy(graph));
}

static void branch_in_a_loop() {
    cudaGraph_t graph, body, ways[2];
    cudaGraphConditionalHandle goes_on, odd;
    CUDA(cudaGraphCreate(&graph, 0));
    CUDA(cudaGraphConditionalHandleCreate(&goes_on, graph, 1, cudaGraphCondAssignDefault));
    CUDA(cudaGraphConditionalHandleCreate(&odd, graph));
    conditional(graph, nullptr, goes_on, cudaGraphCondTypeWhile, 1, &body);
    void *question[] = {&numbers, &odd}, *round[] = {&numbers, &goes_on};
    cudaGraphNode_t asked = kernel(body, nullptr, (void*)is_odd, 32, question);
    cudaGraphNode_t branched = conditional(body, &asked, odd, cudaGraphCondTypeIf, 2, ways);
    kernel(body, &branched, (void*)step, 1, round);
    capture(ways[0], [] { add<<<1, 1, 0, stream>>>(&numbers->odd, 1); });
    capture(ways[1], [] { add<<<1, 1, 0, stream>>>(&numbers->even, 1); });
    // 6, 3, 10, 5, 16, 8, 4, 2
    Numbers it = launch(graph, 6);
    equal("odd numbers", it.odd, 2);
    equal("even numbers", it.even, 6);
    CUDA(cudaGraphDestroy(graph));
}

static void one_of_several() {
    const unsigned WAYS = 3;
    cudaGraph_t graph, bodies[WAYS];
    cudaGraphConditionalHandle handle;
    CUDA(cudaGraphCreate(&graph, 0));
    CUDA(cudaGraphConditionalHandleCreate(&handle, graph));
    unsigned ways = WAYS;
    void* arguments[] = {&numbers, &handle, &ways};
    cudaGraphNode_t chosen = kernel(graph, nullptr, (void*)choose, 64, arguments);
    conditional(graph, &chosen, handle, cudaGraphCondTypeSwitch, WAYS, bodies);
    for (unsigned way = 0; way < WAYS; way++)
        capture(bodies[way], [=] { add<<<1, 1, 0, stream>>>(&numbers->last, 10 + way); });
    for (unsigned value = 0; value < 5; value++)
        equal("one of three, or none", launch(graph, value).last, value < WAYS ? 10 + value : 0);
    CUDA(cudaGraphDestroy(graph));
}

// A whole graph that a stream captures, with a node that is added to the capture: the way of the programming guide.
static void captured() {
    cudaStreamCaptureStatus status;
    cudaGraph_t graph, body;
    const cudaGraphNode_t* before;
    const cudaGraphEdgeData* edges;
    size_t count;
    cudaGraphConditionalHandle handle;
    CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    add<<<1, 1, 0, stream>>>(&numbers->value, 1);
    CUDA(cudaStreamGetCaptureInfo(stream, &status, nullptr, &graph, &before, &edges, &count));
    CUDA(cudaGraphConditionalHandleCreate(&handle, graph, 1, cudaGraphCondAssignDefault));
    cudaGraphNodeParams params = {};
    params.type = cudaGraphNodeTypeConditional;
    params.conditional.handle = handle;
    params.conditional.type = cudaGraphCondTypeWhile;
    params.conditional.size = 1;
    cudaGraphNode_t node;
    CUDA(cudaGraphAddNode(&node, graph, before, edges, count, &params));
    body = params.conditional.phGraph_out[0];
    CUDA(cudaStreamUpdateCaptureDependencies(stream, &node, nullptr, 1, cudaStreamSetCaptureDependencies));
    add<<<1, 1, 0, stream>>>(&numbers->last, 3);
    CUDA(cudaStreamEndCapture(stream, &graph));
    capture(body, [=] { step<<<1, 1, 0, stream>>>(numbers, handle); });
    Numbers it = launch(graph, 5);
    equal("rounds of a captured loop", it.rounds, collatz(6));
    equal("what comes after it", it.last, 3);
    CUDA(cudaGraphDestroy(graph));
}

int main() {
    setvbuf(stdout, nullptr, _IOLBF, 0);  // what has passed is told also if the rest crashes
    CUDA(cudaMalloc(&numbers, sizeof *numbers));
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    loop();
    branch_in_a_loop();
    one_of_several();
    captured();
    CUDA(cudaDeviceSynchronize());
    printf("%d failures\n%s\n", failures, failures ? "FAIL" : "PASS");
    return failures;
}
