//! Arrays, textures, surfaces and tensor maps.

#![allow(non_snake_case)] // CUDA's names
#![allow(unused_variables)] // prototypes are those of the list

use sluice_cuda::*;
use sluice_wire::{product, rows};

use super::ByHand;
use crate::call::{Call, Violation};
use crate::generated::ArraysTexturesSurfacesTensorMaps;
use crate::objects;

impl ArraysTexturesSurfacesTensorMaps for ByHand {
    fn cuArray3DCreate_v2(
        call: &Call,
        pHandle: *mut CUarray,
        pAllocateArray: *const CUDA_ARRAY3D_DESCRIPTOR,
    ) -> Result<(), Violation> {
        call.out(pHandle)?;
        call.read(pAllocateArray).map(drop)
    }

    fn cuMipmappedArrayCreate(
        call: &Call,
        pHandle: *mut CUmipmappedArray,
        pMipmappedArrayDesc: *const CUDA_ARRAY3D_DESCRIPTOR,
        numMipmapLevels: u32,
    ) -> Result<(), Violation> {
        call.out(pHandle)?;
        call.within(numMipmapLevels.into(), 1..=64)?;
        call.read(pMipmappedArrayDesc).map(drop)
    }

    fn cuMipmappedArrayGetLevel(
        call: &Call,
        pLevelArray: *mut CUarray,
        hMipmappedArray: CUmipmappedArray,
        level: u32,
    ) -> Result<(), Violation> {
        call.out(pLevelArray)?;
        call.within(level.into(), 0..=63)
    }

    fn cuArrayGetSparseProperties(
        call: &Call,
        sparseProperties: *mut CUDA_ARRAY_SPARSE_PROPERTIES,
        array: CUarray,
    ) -> Result<(), Violation> {
        call.out(sparseProperties)
    }

    fn cuMipmappedArrayGetSparseProperties(
        call: &Call,
        sparseProperties: *mut CUDA_ARRAY_SPARSE_PROPERTIES,
        mipmap: CUmipmappedArray,
    ) -> Result<(), Violation> {
        call.out(sparseProperties)
    }

    fn cuArrayGetMemoryRequirements(
        call: &Call,
        memoryRequirements: *mut CUDA_ARRAY_MEMORY_REQUIREMENTS,
        array: CUarray,
        device: CUdevice,
    ) -> Result<(), Violation> {
        call.out(memoryRequirements)?;
        call.one_of(device, &[0])
    }

    fn cuMipmappedArrayGetMemoryRequirements(
        call: &Call,
        memoryRequirements: *mut CUDA_ARRAY_MEMORY_REQUIREMENTS,
        mipmap: CUmipmappedArray,
        device: CUdevice,
    ) -> Result<(), Violation> {
        call.out(memoryRequirements)?;
        call.one_of(device, &[0])
    }

    fn cuTexObjectCreate(
        call: &Call,
        pTexObject: *mut CUtexObject,
        pResDesc: *const CUDA_RESOURCE_DESC,
        pTexDesc: *const CUDA_TEXTURE_DESC,
        pResViewDesc: *const CUDA_RESOURCE_VIEW_DESC,
    ) -> Result<(), Violation> {
        call.out(pTexObject)?;
        call.resource(&call.read(pResDesc)?)?;
        call.read(pTexDesc)?;
        if pResViewDesc.is_null() { Ok(()) } else { call.read(pResViewDesc).map(drop) }
    }

    fn cuSurfObjectCreate(
        call: &Call,
        pSurfObject: *mut CUsurfObject,
        pResDesc: *const CUDA_RESOURCE_DESC,
    ) -> Result<(), Violation> {
        call.out(pSurfObject)?;
        call.resource(&call.read(pResDesc)?)
    }

    /// One of a module ends with the module only.
    fn cuTexRefDestroy(call: &Call, hTexRef: CUtexref) -> Result<(), Violation> {
        if objects::is_of_module(hTexRef) {
            return Err(format!("{hTexRef:?} is a variable of a module"));
        }
        Ok(())
    }

    fn cuTexRefGetArray(call: &Call, phArray: *mut CUarray, hTexRef: CUtexref) -> Result<(), Violation> {
        call.out(phArray)
    }

    fn cuTexRefGetMipmappedArray(
        call: &Call,
        phMipmappedArray: *mut CUmipmappedArray,
        hTexRef: CUtexref,
    ) -> Result<(), Violation> {
        call.out(phMipmappedArray)
    }

    fn cuTexRefGetBorderColor(
        call: &Call,
        pBorderColor: *mut f32,
        hTexRef: CUtexref,
    ) -> Result<(), Violation> {
        call.out_list(pBorderColor, 4)
    }

    fn cuTexRefSetAddress2D_v3(
        call: &Call,
        hTexRef: CUtexref,
        desc: *const CUDA_ARRAY_DESCRIPTOR,
        dptr: CUdeviceptr,
        Pitch: usize,
    ) -> Result<(), Violation> {
        let it = call.read(desc)?;
        let channel = it.Format.channel_bytes().ok_or_else(|| format!("format {:?}", it.Format))?;
        let row = product(&[it.Width as u64, channel, it.NumChannels.into()]);
        call.device(dptr, rows(it.Height as u64, row, Pitch as u64))
    }

    fn cuSurfRefGetArray(call: &Call, phArray: *mut CUarray, hSurfRef: CUsurfref) -> Result<(), Violation> {
        call.out(phArray)
    }
}
