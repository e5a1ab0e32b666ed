//! Facts about the driver's functions, and what `cuGetProcAddress` does with them.

use crate::{
    CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, CUdriverProcAddressQueryResult,
    generated::functions::{FUNCTIONS, Fn},
};

/// What the list says about one function.
#[derive(Clone, Copy, Debug)]
pub struct FnInfo {
    pub function: Fn,
    /// The exported name.
    pub name: &'static str,
    /// The name that `cuGetProcAddress` is asked for: without `_v2` and the like.
    pub symbol: &'static str,
    /// The CUDA version, such as 12090, from which `cuGetProcAddress` gives this function.
    pub version: Option<u32>,
    pub variant: Option<Variant>,
    pub class: Class,
}

/// The second export of a function, for which null streams are the calling thread's own.
#[derive(Clone, Copy, Debug)]
pub struct Variant {
    pub name: &'static str,
    pub version: Option<u32>,
}

/// Where a call is answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Class {
    /// In the client.
    Local,
    /// On the node, and the client does not wait for it.
    Queued,
    /// On the node, and the caller waits for the answer.
    Waiting,
    /// In the client, over messages of another function.
    Via(Fn),
    /// Nowhere, for this reason.
    Absent(&'static str),
}

/// Makes `Fn` and its table from rows of `name "symbol" version (variant) class;`.
macro_rules! functions {
    ($($name:ident $symbol:literal $version:tt ($($variant:literal $since:tt)?) $class:expr;)*) => {
        /// A function of the CUDA driver, without its per-thread variant.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[repr(u16)]
        pub enum Fn {
            $($name,)*
        }

        /// One row per function, in the order of `Fn`.
        pub static FUNCTIONS: [$crate::FnInfo; [$(Fn::$name),*].len()] = [$(
            $crate::FnInfo {
                function: Fn::$name,
                name: stringify!($name),
                symbol: $symbol,
                version: $version,
                variant: $crate::function::functions!(@variant $($variant $since)?),
                class: $class,
            },
        )*];
    };
    (@variant) => { None };
    (@variant $name:literal $since:tt) => { Some($crate::Variant { name: $name, version: $since }) };
}

pub(crate) use functions;

impl Fn {
    pub const COUNT: usize = FUNCTIONS.len();

    pub fn info(self) -> &'static FnInfo {
        &FUNCTIONS[self as usize]
    }

    /// The exported name.
    pub fn name(self) -> &'static str {
        self.info().name
    }

    pub fn from_number(number: u16) -> Option<Fn> {
        FUNCTIONS.get(usize::from(number)).map(|info| info.function)
    }

    /// The function that exports this name, and whether the name is that of its per-thread variant.
    pub fn from_export(name: &str) -> Option<(Fn, bool)> {
        FUNCTIONS.iter().find_map(|info| {
            if info.name == name {
                Some((info.function, false))
            } else {
                info.variant.filter(|variant| variant.name == name).map(|_| (info.function, true))
            }
        })
    }
}

/// What `cuGetProcAddress` found for a symbol.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProcAddress {
    pub function: Fn,
    /// Whether it is the variant for which null streams are the calling thread's own.
    pub per_thread: bool,
}

impl FnInfo {
    /// Whether a driver of this version has the function. Those that are absent here answer
    /// `CUDA_ERROR_NOT_SUPPORTED` under the same address, as they do on a driver whose devices lack
    /// the ability; what is built works on older drivers as well.
    pub fn is_exported_by(&self, driver_version: u32) -> bool {
        !matches!(self.class, Class::Absent(_)) || self.version.is_some_and(|since| since <= driver_version)
    }
}

/// The newest function of this symbol up to `version`, if `is_present` holds for it.
///
/// `version` is the CUDA version that the program was built for, and `flags` are those of
/// `cuGetProcAddress`.
///
/// The error is what `cuGetProcAddress` writes to its `symbolStatus`: the symbol is unknown or not
/// present, or all its functions are newer than `version`. A function that is not present does not
/// give way to an older one: their prototypes may differ.
pub fn find_proc_address(
    symbol: &str,
    version: u32,
    flags: u64,
    is_present: impl std::ops::Fn(&FnInfo) -> bool,
) -> Result<ProcAddress, CUdriverProcAddressQueryResult> {
    let wants_variant = flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM != 0;
    let mut known = false;
    let mut newest: Option<(u32, &FnInfo, bool)> = None;
    for info in FUNCTIONS.iter().filter(|info| info.symbol == symbol) {
        let variant = info.variant.and_then(|variant| variant.version).filter(|_| wants_variant);
        let Some(since) = variant.or(info.version) else { continue };
        known = true;
        if since <= version && newest.is_none_or(|(other, ..)| since >= other) {
            newest = Some((since, info, variant.is_some()));
        }
    }
    match newest {
        Some((_, info, per_thread)) if is_present(info) => {
            Ok(ProcAddress { function: info.function, per_thread })
        }
        None if known => Err(CUdriverProcAddressQueryResult::VERSION_NOT_SUFFICIENT),
        _ => Err(CUdriverProcAddressQueryResult::SYMBOL_NOT_FOUND),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(symbol: &str, version: u32, flags: u64) -> String {
        match find_proc_address(symbol, version, flags, |info| info.is_exported_by(13000)) {
            Ok(ProcAddress { function, per_thread: false }) => function.name().to_string(),
            Ok(ProcAddress { function, per_thread: true }) => {
                function.info().variant.unwrap().name.to_string()
            }
            Err(status) => format!("{status:?}"),
        }
    }

    #[test]
    fn the_table_is_in_the_order_of_the_ids() {
        for (index, info) in FUNCTIONS.iter().enumerate() {
            assert_eq!(info.function as usize, index);
            assert_eq!(Fn::from_export(info.name), Some((info.function, false)));
        }
    }

    #[test]
    fn the_newest_function_up_to_the_version_is_found() {
        assert_eq!(found("cuMemAlloc", 12000, 0), "cuMemAlloc_v2");
        assert_eq!(found("cuCtxGetDevice", 12000, 0), "cuCtxGetDevice");
        assert_eq!(found("cuCtxGetDevice", 13000, 0), "cuCtxGetDevice_v2");
        assert_eq!(found("cuStreamGetCaptureInfo", 11030, 0), "cuStreamGetCaptureInfo_v2");
        assert_eq!(found("cuGetProcAddress", 12000, 0), "cuGetProcAddress_v2");
    }

    #[test]
    fn the_per_thread_variant_is_found_on_request() {
        assert_eq!(found("cuMemcpyHtoDAsync", 12000, 2), "cuMemcpyHtoDAsync_v2_ptsz");
        assert_eq!(found("cuMemcpyHtoD", 12000, 2), "cuMemcpyHtoD_v2_ptds");
        assert_eq!(found("cuMemcpyHtoD", 12000, 1), "cuMemcpyHtoD_v2");
        assert_eq!(found("cuInit", 12000, 2), "cuInit");
    }

    #[test]
    fn unknown_and_too_new_symbols_are_told_apart() {
        assert_eq!(found("cuNoSuchFunction", 13000, 0), "SYMBOL_NOT_FOUND");
        assert_eq!(found("cuLibraryLoadData", 11000, 0), "VERSION_NOT_SUFFICIENT");
    }

    #[test]
    fn every_function_that_a_driver_of_this_version_exports_is_found() {
        for info in FUNCTIONS.iter() {
            let Some(since) = info.version else { continue };
            let found = find_proc_address(info.symbol, since, 0, |info| info.is_exported_by(since));
            assert!(found.is_ok(), "{} is not found for CUDA {since}: {found:?}", info.name);
        }
        assert_eq!(found("cuMemBatchDecompressAsync", 13000, 0), "cuMemBatchDecompressAsync");
        assert_eq!(found("cuGraphicsGLRegisterBuffer", 13000, 0), "cuGraphicsGLRegisterBuffer");
    }

    #[test]
    fn an_absent_function_that_is_newer_than_the_driver_is_not_found() {
        assert_eq!(found("cuLogicalEndpointCreate", 13030, 0), "SYMBOL_NOT_FOUND");
    }
}
