//! The two shapes of C type that the CUDA ABI is full of, as Rust types that no C caller can make
//! invalid.

/// Declares C enumerations as transparent integers: a program may pass any number, so a Rust `enum`
/// would be undefined behaviour. The numbers that CUDA names become associated constants.
macro_rules! abi_enum {
    ($($(#[$doc:meta])* pub struct $name:ident($repr:ty) { $($item:ident = $value:expr,)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        #[repr(transparent)]
        pub struct $name(pub $repr);

        impl $name {
            $(pub const $item: $name = $name($value);)*

            /// Every named value with its name, in ascending order.
            pub const NAMED: &[(Self, &str)] = &[$(($name::$item, stringify!($item))),*];

            /// The name of this value without CUDA's prefix.
            pub fn name(self) -> Option<&'static str> {
                Self::NAMED.iter().find(|(value, _)| *value == self).map(|(_, name)| *name)
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                match self.name() {
                    Some(name) => f.write_str(name),
                    None => write!(f, "{}({})", stringify!($name), self.0),
                }
            }
        }
    )*};
}

/// Declares opaque handles. They are kept as addresses, not pointers: only their driver may follow
/// one, and the client library uses the numbers it minted.
macro_rules! abi_handle {
    ($($(#[$doc:meta])* $name:ident)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        #[repr(transparent)]
        pub struct $name(pub usize);

        impl $name {
            pub const NULL: $name = $name(0);

            pub fn is_null(self) -> bool {
                self.0 == 0
            }
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, "{}({:#x})", stringify!($name), self.0)
            }
        }
    )*};
}

pub(crate) use {abi_enum, abi_handle};
