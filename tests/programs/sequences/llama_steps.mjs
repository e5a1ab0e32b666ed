// llama.cpp, as node-llama-cpp has it built for CUDA: loads the model that the argument names onto the GPU and evaluates tokens.
// Steps are lines as those of steps.py.

import {createRequire} from "node:module";
import {join} from "node:path";
import {pathToFileURL} from "node:url";

const [, , modules, modelPath] = process.argv;
const entry = createRequire(join(modules, "package.json")).resolve("node-llama-cpp");
const {getLlama} = await import(pathToFileURL(entry));

const llama = await getLlama({gpu: "cuda", build: "never", logLevel: "error"});
console.log(`OK\tback end\t${llama.gpu} ${await llama.getGpuDeviceNames()}`);
const model = await llama.loadModel({modelPath, gpuLayers: "max"});
if (model.gpuLayers !== 3)
    throw new Error(`${model.gpuLayers} of 3 layers are on the GPU`);
console.log(`OK\tmodel\tlayers ${model.gpuLayers}`);
const context = await model.createContext({contextSize: 64});
console.log(`OK\tcontext\t${context.contextSize}`);
const tokens = [];
for await (const token of context.getSequence().evaluate([1, 300, 400], {temperature: 0})) {
    tokens.push(token);
    if (tokens.length === 6)
        break;
}
if (tokens.length !== 6)
    throw new Error(`${tokens.length} of 6 tokens`);
console.log(`OK\ttokens\t${tokens}`);
console.log("PASS");
process.exit(0);
