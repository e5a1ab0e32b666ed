//! Images in device memory, and what reads them: arrays, texture and surface objects, references
//! and tensor maps. What belongs here turns a description of the API into an image of
//! [`sluice_ir::texture`]; the bytes are memory's.

pub(crate) mod array;
pub(crate) mod reference;
pub(crate) mod tensor_map;
pub(crate) mod texture;
