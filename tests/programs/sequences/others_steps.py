"""Programs of one or two calls: onnxruntime, faiss or xgboost, as the argument says."""

import sys

import numpy as np
from steps import Steps

step = Steps()
PROGRAM = sys.argv[1]

if PROGRAM == "onnxruntime":

    @step("run")
    def _():
        import onnx
        import onnxruntime
        from onnx import TensorProto, helper

        onnxruntime.preload_dlls()
        tensor = lambda name, shape: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Add", ["a", "b"], ["c"]),
                 helper.make_node("Relu", ["c"], ["y"])]
        constants = [helper.make_tensor("w", TensorProto.FLOAT, [3, 3], np.eye(3).flatten()),
                     helper.make_tensor("b", TensorProto.FLOAT, [3], [1.0] * 3)]
        graph = helper.make_graph(nodes, "g", [tensor("x", [1, 3])], [tensor("y", [1, 3])], constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CUDAExecutionProvider"])
        assert session.get_providers()[0] == "CUDAExecutionProvider", session.get_providers()
        return session.run(None, {"x": np.ones((1, 3), np.float32)})[0]

elif PROGRAM == "faiss":

    import faiss

    @step("ngpu")
    def _():
        return faiss.get_num_gpus()

    @step("flat")
    def _():
        index = faiss.GpuIndexFlatL2(faiss.StandardGpuResources(), 32)
        index.add(np.random.rand(1000, 32).astype(np.float32))
        return index.search(np.random.rand(2, 32).astype(np.float32), 4)[1].shape

elif PROGRAM == "xgboost":
    import xgboost

    ROWS = np.random.rand(500, 10)
    LABELS = (ROWS[:, 0] > 0.5).astype(int)

    @step("rows on the device")
    def _():
        return xgboost.QuantileDMatrix(ROWS, LABELS).num_row()

    @step("train")
    def _():
        parameters = {"device": "cuda", "tree_method": "hist", "max_depth": 3}
        try:
            return xgboost.train(parameters, xgboost.DMatrix(ROWS, LABELS), 3).num_boosted_rounds()
        except xgboost.core.XGBoostError as error:
            # A kernel is to say that all labels are valid; where it is only recorded, it says nothing, and training ends.
            assert "Check failed: is_valid" in str(error), error
            return "labels checked"

else:
    sys.exit(f"no program {PROGRAM!r}")

step.run()
