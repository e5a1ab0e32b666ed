//! A CUDA driver that records: it has the devices, the memory, the streams and the errors of a real
//! one, and runs no kernel.
//!
//! ```text
//!   card       the modelled devices: what they answer when they are asked for their properties
//!   machine    images to code: cubins, PTX and fat binaries, as far as a launch needs them
//!   record     what was launched, as lines of a file
//!   tensor_map objects that only device code would look into
//! ```
//!
//! All the rest is the software GPU's (`sluice-softgpu`), with this crate's
//! [`Machine`](sluice_softgpu::Machine) where code would run: memory is host memory behind device
//! addresses, copies and fills happen, streams, events and graphs keep their order, and every
//! argument is checked. So a program's call sequence runs to its end on any machine, whatever it
//! was compiled for; only the numbers that its kernels would have computed are not there.

mod card;
mod machine;
mod record;
mod tensor_map;

use sluice_cuda::DriverTable;

pub use card::Model;

/// The driver, with `count` GPUs of a model.
pub fn table(model: Model, count: usize) -> DriverTable {
    let cards = (0..count).map(|ordinal| card::card(model, ordinal)).collect();
    sluice_softgpu::configure_cards(cards, &machine::Recording);
    DriverTable {
        cuTensorMapEncodeTiled: Some(tensor_map::cuTensorMapEncodeTiled),
        cuTensorMapEncodeIm2col: Some(tensor_map::cuTensorMapEncodeIm2col),
        cuTensorMapSetAllocationClass: Some(tensor_map::cuTensorMapSetAllocationClass),
        cuTensorMapReplaceAddress: Some(tensor_map::cuTensorMapReplaceAddress),
        ..sluice_softgpu::table()
    }
}
