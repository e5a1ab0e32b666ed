//! What the libraries share that stand for NVIDIA's on a software GPU (`crates/blas`,
//! `crates/rand`, `crates/fft`).
//!
//! Such a library is loaded into the program under the name of NVIDIA's. It writes its kernels as
//! PTX ([`writer`]), loads them into the caller's context ([`kernels`]) through the program's own
//! `libcuda.so.1` ([`driver`]), and keeps panics away from the caller ([`entry`]). The state behind
//! the handles that it gives out is in [`handles`].

pub mod driver;
pub mod entry;
pub mod handles;
pub mod kernels;
pub mod version;
pub mod writer;
