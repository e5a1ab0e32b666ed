//! The software GPU as a `libcuda.so.1` of its own: CUDA programs without a GPU, a node, or a
//! network.

mod driver;
mod export_tables;
mod generated {
    pub(crate) mod exports;
}
