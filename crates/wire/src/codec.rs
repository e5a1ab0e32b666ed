//! How values become bytes: little-endian, fixed widths, sequences with a 32-bit count. No copy of
//! bulk data: what is read borrows from the frame.
//!
//! A reader never trusts a count. It is compared with the bytes that are there before anything is
//! allocated, so a frame cannot ask for more memory than it brought.

use std::ffi::CStr;

use crate::error::WireError;

/// A value that can be written.
pub trait Encode {
    fn encode(&self, out: &mut Vec<u8>);
}

/// A value that can be read; `'a` is the life of the frame.
pub trait Decode<'a>: Sized {
    fn decode(reader: &mut Reader<'a>) -> Result<Self, WireError>;
}

/// The unread rest of a payload.
#[derive(Clone, Copy)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub fn new(payload: &'a [u8]) -> Reader<'a> {
        Reader { rest: payload }
    }

    /// The next `count` bytes.
    pub fn take(&mut self, count: usize) -> Result<&'a [u8], WireError> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(WireError::Truncated)?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or(WireError::Truncated)?;
        self.rest = rest;
        Ok(*taken)
    }

    /// Refuses a payload that is longer than its message.
    pub fn end(&self) -> Result<(), WireError> {
        if self.rest.is_empty() { Ok(()) } else { Err(WireError::Trailing(self.rest.len())) }
    }
}

/// Reads a whole payload as one value.
pub fn decode<'a, T: Decode<'a>>(payload: &'a [u8]) -> Result<T, WireError> {
    let mut reader = Reader::new(payload);
    let value = T::decode(&mut reader)?;
    reader.end()?;
    Ok(value)
}

macro_rules! numbers {
    ($($number:ty)*) => {$(
        impl Encode for $number {
            fn encode(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }
        }

        impl Decode<'_> for $number {
            fn decode(reader: &mut Reader<'_>) -> Result<Self, WireError> {
                Ok(<$number>::from_le_bytes(reader.array()?))
            }
        }
    )*};
}

numbers! { u8 u16 u32 u64 i32 i64 f32 }

impl Encode for bool {
    fn encode(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }
}

impl Decode<'_> for bool {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        match u8::decode(reader)? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(WireError::Value { what: "bool", value: other.into() }),
        }
    }
}

impl Encode for () {
    fn encode(&self, _out: &mut Vec<u8>) {}
}

impl Decode<'_> for () {
    fn decode(_reader: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(())
    }
}

/// Writes the length of a sequence. Senders keep far below what a frame can hold; should one not,
/// the frame that results is refused by its own size.
fn encode_count(count: usize, out: &mut Vec<u8>) {
    u32::try_from(count).unwrap_or(u32::MAX).encode(out);
}

impl Encode for &[u8] {
    fn encode(&self, out: &mut Vec<u8>) {
        encode_count(self.len(), out);
        out.extend_from_slice(self);
    }
}

impl<'a> Decode<'a> for &'a [u8] {
    fn decode(reader: &mut Reader<'a>) -> Result<Self, WireError> {
        let count = u32::decode(reader)?;
        reader.take(count as usize)
    }
}

impl Encode for &CStr {
    fn encode(&self, out: &mut Vec<u8>) {
        self.to_bytes_with_nul().encode(out);
    }
}

impl<'a> Decode<'a> for &'a CStr {
    fn decode(reader: &mut Reader<'a>) -> Result<Self, WireError> {
        CStr::from_bytes_with_nul(<&[u8]>::decode(reader)?).map_err(|_| WireError::Text)
    }
}

impl Encode for String {
    fn encode(&self, out: &mut Vec<u8>) {
        self.as_bytes().encode(out);
    }
}

impl Decode<'_> for String {
    fn decode(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        let bytes = <&[u8]>::decode(reader)?;
        Ok(std::str::from_utf8(bytes).map_err(|_| WireError::Text)?.to_string())
    }
}

impl<T: Encode> Encode for Option<T> {
    fn encode(&self, out: &mut Vec<u8>) {
        self.is_some().encode(out);
        if let Some(value) = self {
            value.encode(out);
        }
    }
}

impl<'a, T: Decode<'a>> Decode<'a> for Option<T> {
    fn decode(reader: &mut Reader<'a>) -> Result<Self, WireError> {
        Ok(if bool::decode(reader)? { Some(T::decode(reader)?) } else { None })
    }
}

/// A part of a message that is kept apart, since it is much larger than other messages.
impl<T: Encode> Encode for Box<T> {
    fn encode(&self, out: &mut Vec<u8>) {
        (**self).encode(out);
    }
}

impl<'a, T: Decode<'a>> Decode<'a> for Box<T> {
    fn decode(reader: &mut Reader<'a>) -> Result<Self, WireError> {
        T::decode(reader).map(Box::new)
    }
}

impl<T: Encode> Encode for Vec<T> {
    fn encode(&self, out: &mut Vec<u8>) {
        encode_count(self.len(), out);
        for item in self {
            item.encode(out);
        }
    }
}

impl<'a, T: Decode<'a>> Decode<'a> for Vec<T> {
    fn decode(reader: &mut Reader<'a>) -> Result<Self, WireError> {
        let count = u32::decode(reader)? as usize;
        // Every item takes at least one byte, so a count above what is left is a lie. The vector
        // still grows as items arrive: a byte on the wire may be many in memory.
        if count > reader.rest.len() {
            return Err(WireError::Truncated);
        }
        let mut items = Vec::new();
        for _ in 0..count {
            items.push(T::decode(reader)?);
        }
        Ok(items)
    }
}

impl<T: Encode, const N: usize> Encode for [T; N] {
    fn encode(&self, out: &mut Vec<u8>) {
        for item in self {
            item.encode(out);
        }
    }
}

impl<'a, T: Decode<'a> + Copy + Default, const N: usize> Decode<'a> for [T; N] {
    fn decode(reader: &mut Reader<'a>) -> Result<Self, WireError> {
        let mut items = [T::default(); N];
        for item in &mut items {
            *item = T::decode(reader)?;
        }
        Ok(items)
    }
}

impl<A: Encode, B: Encode> Encode for (A, B) {
    fn encode(&self, out: &mut Vec<u8>) {
        self.0.encode(out);
        self.1.encode(out);
    }
}

impl<'a, A: Decode<'a>, B: Decode<'a>> Decode<'a> for (A, B) {
    fn decode(reader: &mut Reader<'a>) -> Result<Self, WireError> {
        Ok((A::decode(reader)?, B::decode(reader)?))
    }
}

/// Declares a structure that travels field by field, in order.
macro_rules! message {
    ($(#[$doc:meta])* pub struct $name:ident $(<$life:lifetime>)? {
        $($(#[$field_doc:meta])* $field:ident: $of:ty),* $(,)?
    }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $name $(<$life>)? {
            $($(#[$field_doc])* pub $field: $of,)*
        }

        impl $(<$life>)? $crate::codec::Encode for $name $(<$life>)? {
            #[allow(unused_variables)] // a message may have no fields
            fn encode(&self, out: &mut Vec<u8>) {
                $($crate::codec::Encode::encode(&self.$field, out);)*
            }
        }

        #[cfg(any(test, feature = "sample"))]
        impl<'s> $crate::sample::Sample<'s> for $crate::codec::message!(@with $name $($life)?) {
            #[allow(unused_variables)] // a message may have no fields
            fn sample(source: &mut $crate::sample::Source<'s>) -> Self {
                $name { $($field: $crate::sample::Sample::sample(source),)* }
            }
        }

        $crate::codec::message!(@decode $name [$($life)?] $($field)*);
    };
    (@with $name:ident) => { $name };
    (@with $name:ident $life:lifetime) => { $name<'s> };
    (@decode $name:ident [] $($field:ident)*) => {
        impl $crate::codec::Decode<'_> for $name {
            #[allow(unused_variables)] // a message may have no fields
            fn decode(reader: &mut $crate::codec::Reader<'_>) -> Result<Self, $crate::error::WireError> {
                Ok($name { $($field: $crate::codec::Decode::decode(reader)?,)* })
            }
        }
    };
    (@decode $name:ident [$life:lifetime] $($field:ident)*) => {
        impl<$life> $crate::codec::Decode<$life> for $name<$life> {
            fn decode(reader: &mut $crate::codec::Reader<$life>) -> Result<Self, $crate::error::WireError> {
                Ok($name { $($field: $crate::codec::Decode::decode(reader)?,)* })
            }
        }
    };
}

/// The message of one of several kinds, after the kind's number.
macro_rules! choice {
    ($(#[$doc:meta])* pub enum $name:ident {
        $($(#[$variant_doc:meta])* $variant:ident($of:ty) = $tag:literal,)*
    }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq)]
        pub enum $name {
            $($(#[$variant_doc])* $variant($of),)*
        }

        impl $crate::codec::Encode for $name {
            fn encode(&self, out: &mut Vec<u8>) {
                match self {
                    $(Self::$variant(fields) => {
                        out.push($tag);
                        $crate::codec::Encode::encode(fields, out);
                    })*
                }
            }
        }

        impl $crate::codec::Decode<'_> for $name {
            fn decode(reader: &mut $crate::codec::Reader<'_>) -> Result<Self, $crate::error::WireError> {
                match <u8 as $crate::codec::Decode>::decode(reader)? {
                    $($tag => Ok(Self::$variant($crate::codec::Decode::decode(reader)?)),)*
                    other => Err($crate::error::WireError::Value { what: stringify!($name), value: other.into() }),
                }
            }
        }

        #[cfg(any(test, feature = "sample"))]
        impl<'s> $crate::sample::Sample<'s> for $name {
            fn sample(source: &mut $crate::sample::Source<'s>) -> Self {
                let makers: &[fn(&mut $crate::sample::Source<'s>) -> Self] =
                    &[$(|source| Self::$variant($crate::sample::Sample::sample(source)),)*];
                let choice = usize::from(<u8 as $crate::sample::Sample>::sample(source));
                makers[choice % makers.len()](source)
            }
        }
    };
}

pub(crate) use {choice, message};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_beyond_the_payload_is_refused_before_anything_is_allocated() {
        let huge = [0xff, 0xff, 0xff, 0xff, 1, 2, 3];
        assert_eq!(decode::<&[u8]>(&huge), Err(WireError::Truncated));
        assert_eq!(decode::<Vec<u8>>(&huge), Err(WireError::Truncated));
    }

    #[test]
    fn a_string_has_exactly_one_nul_at_its_end() {
        let mut bytes = Vec::new();
        c"saxpy".encode(&mut bytes);
        assert_eq!(decode::<&CStr>(&bytes), Ok(c"saxpy"));
        bytes[5] = 0;
        assert_eq!(decode::<&CStr>(&bytes), Err(WireError::Text));
    }

    #[test]
    fn bytes_after_a_message_are_refused() {
        assert_eq!(decode::<u8>(&[1, 2]), Err(WireError::Trailing(1)));
    }
}
