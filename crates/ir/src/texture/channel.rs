//! Elements as they lie in memory.

/// How a channel of an element is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Channel {
    U8,
    U16,
    U32,
    S8,
    S16,
    S32,
    F16,
    F32,
}

impl Channel {
    pub fn bytes(self) -> u64 {
        match self {
            Channel::U8 | Channel::S8 => 1,
            Channel::U16 | Channel::S16 | Channel::F16 => 2,
            Channel::U32 | Channel::S32 | Channel::F32 => 4,
        }
    }

    /// A channel of an element: an integer, or the bits of a float.
    pub(super) fn decode(self, raw: &[u8; 16], number: usize, is_float: bool) -> u32 {
        let at = number * self.bytes() as usize;
        let bits = match self.bytes() {
            1 => u32::from(raw[at]),
            2 => u32::from(u16::from_le_bytes([raw[at], raw[at + 1]])),
            _ => u32::from_le_bytes([raw[at], raw[at + 1], raw[at + 2], raw[at + 3]]),
        };
        self.value(bits, is_float)
    }

    /// What is read of a channel whose bits are the lowest of a word: an integer, or the bits of a
    /// float.
    #[inline(always)]
    pub fn value(self, bits: u32, is_float: bool) -> u32 {
        let (byte, short) = (bits as u8, bits as u16);
        let (integer, number) = match self {
            Channel::U8 => (u32::from(byte), f32::from(byte) / 255.0),
            Channel::S8 => {
                let value = byte as i8;
                (i32::from(value) as u32, (f32::from(value) / 127.0).max(-1.0))
            }
            Channel::U16 => (u32::from(short), f32::from(short) / 65535.0),
            Channel::S16 => {
                let value = short as i16;
                (i32::from(value) as u32, (f32::from(value) / 32767.0).max(-1.0))
            }
            Channel::F16 => return half(short).to_bits(),
            Channel::U32 | Channel::S32 | Channel::F32 => return bits,
        };
        if is_float { number.to_bits() } else { integer }
    }
}

/// A half as a float, exactly.
#[inline(always)]
pub(super) fn half(bits: u16) -> f32 {
    let sign = u32::from(bits >> 15) << 31;
    let (exponent, fraction) = (u32::from(bits >> 10 & 31), u32::from(bits & 1023));
    match (exponent, fraction) {
        (0, _) => {
            let tiny = fraction as f32 / (1 << 24) as f32;
            f32::from_bits(tiny.to_bits() | sign)
        }
        (31, _) => f32::from_bits(sign | 0x7f80_0000 | fraction << 13),
        _ => f32::from_bits(sign | (exponent + 112) << 23 | fraction << 13),
    }
}
