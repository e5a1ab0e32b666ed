//! Device-side `printf` (CUDA C++ Programming Guide, Formatted Output).
//!
//! The format and its arguments are in device memory, so every byte is read with a check. Arguments
//! follow the rules of C variable arguments in memory: each at the next multiple of its size.

use std::fmt;

use crate::block::BlockRun;
use crate::fault::FaultKind;

/// Bytes that one call prints at most; the rest is cut off.
const TEXT_BYTES_MAX: usize = 4096;

/// Text on the stack: what is left by a signal must own nothing.
pub(super) struct Text {
    bytes: [u8; TEXT_BYTES_MAX],
    len: usize,
}

impl Text {
    pub(super) fn new() -> Text {
        Text { bytes: [0; TEXT_BYTES_MAX], len: 0 }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    pub(super) fn push_format(&mut self, arguments: fmt::Arguments<'_>) {
        // Writing to a `Text` does not fail.
        let _ = fmt::Write::write_fmt(self, arguments);
    }

    fn push(&mut self, bytes: &[u8]) {
        let room = TEXT_BYTES_MAX - self.len;
        let bytes = &bytes[..bytes.len().min(room)];
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }
}

impl fmt::Write for Text {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.push(text.as_bytes());
        Ok(())
    }
}

/// Reads device memory; an address outside of it ends the grid.
pub(super) struct DeviceMemory<'a> {
    run: &'a BlockRun<'a>,
}

impl<'a> DeviceMemory<'a> {
    pub(super) fn of(run: &'a BlockRun<'a>) -> DeviceMemory<'a> {
        DeviceMemory { run }
    }

    fn read<const N: usize>(&self, address: u64) -> [u8; N] {
        let shape = self.run.shape;
        if address.wrapping_sub(shape.memory_base) > shape.memory_size - N as u64 {
            self.run.leave(FaultKind::IllegalAddress { address });
        }
        // SAFETY: inside the device range; a page that is not mapped is a signal, which leaves from
        // here.
        unsafe { (address as *const [u8; N]).read_unaligned() }
    }

    pub(super) fn copy_string(&self, address: u64, text: &mut Text) {
        self.copy_string_up_to(address, usize::MAX, text);
    }

    fn copy_string_up_to(&self, address: u64, len_max: usize, text: &mut Text) {
        for place in 0..len_max.min(TEXT_BYTES_MAX) {
            match self.read::<1>(address.wrapping_add(place as u64)) {
                [0] => return,
                byte => text.push(&byte),
            }
        }
    }
}

/// Appends the formatted text. Returns the number of arguments, or -1 for a null format.
pub(super) fn format(memory: &DeviceMemory<'_>, format: u64, arguments: u64, text: &mut Text) -> i32 {
    if format == 0 {
        return -1;
    }
    let mut at = format;
    let mut next = || {
        let [byte] = memory.read::<1>(at);
        at += 1;
        byte
    };
    let mut arguments = Arguments { memory, next: arguments, count: 0 };
    loop {
        match next() {
            0 => return arguments.count,
            b'%' => {
                if let Some(spec) = Spec::parse(&mut next, &mut arguments) {
                    spec.print(&mut arguments, text);
                } else {
                    return arguments.count;
                }
            }
            byte => text.push(&[byte]),
        }
    }
}

struct Arguments<'m, 'r> {
    memory: &'m DeviceMemory<'r>,
    next: u64,
    count: i32,
}

impl Arguments<'_, '_> {
    fn word(&mut self) -> u32 {
        self.count += 1;
        let address = self.next.next_multiple_of(4);
        self.next = address + 4;
        u32::from_le_bytes(self.memory.read(address))
    }

    fn wide(&mut self) -> u64 {
        self.count += 1;
        let address = self.next.next_multiple_of(8);
        self.next = address + 8;
        u64::from_le_bytes(self.memory.read(address))
    }
}

/// A conversion specification: `%[flags][width][.precision][size]conversion`.
#[derive(Default)]
struct Spec {
    left: bool,
    plus: bool,
    space: bool,
    alternate: bool,
    zero: bool,
    width: usize,
    precision: Option<usize>,
    is_wide: bool,
    conversion: u8,
}

impl Spec {
    /// The specification behind a `%`; `None` at the end of the format.
    fn parse(next: &mut impl FnMut() -> u8, arguments: &mut Arguments<'_, '_>) -> Option<Spec> {
        let mut spec = Spec::default();
        let mut byte = next();
        loop {
            match byte {
                b'-' => spec.left = true,
                b'+' => spec.plus = true,
                b' ' => spec.space = true,
                b'#' => spec.alternate = true,
                b'0' => spec.zero = true,
                _ => break,
            }
            byte = next();
        }
        let mut number = |byte: &mut u8| {
            if *byte == b'*' {
                *byte = next();
                return arguments.word() as usize;
            }
            let mut value = 0usize;
            while byte.is_ascii_digit() {
                value = (value * 10 + usize::from(*byte - b'0')).min(TEXT_BYTES_MAX);
                *byte = next();
            }
            value
        };
        spec.width = number(&mut byte).min(TEXT_BYTES_MAX);
        if byte == b'.' {
            byte = b'0';
            // The digit zero in place of the dot changes no number.
            spec.precision = Some(number(&mut byte));
        }
        while matches!(byte, b'l' | b'h' | b'z' | b'j' | b't' | b'L') {
            spec.is_wide |= !matches!(byte, b'h');
            byte = next();
        }
        spec.conversion = byte;
        (byte != 0).then_some(spec)
    }

    fn print(&self, arguments: &mut Arguments<'_, '_>, text: &mut Text) {
        let mut body = Text::new();
        let mut sign: &[u8] = b"";
        match self.conversion {
            b'%' => return text.push(b"%"),
            b'd' | b'i' => {
                let value =
                    if self.is_wide { arguments.wide() as i64 } else { i64::from(arguments.word() as i32) };
                sign = self.sign(value < 0);
                self.digits(value.unsigned_abs(), 10, &mut body);
            }
            b'u' | b'x' | b'X' | b'o' => {
                let value = if self.is_wide { arguments.wide() } else { u64::from(arguments.word()) };
                sign = match self.conversion {
                    b'x' if self.alternate && value != 0 => b"0x",
                    b'X' if self.alternate && value != 0 => b"0X",
                    b'o' if self.alternate => b"0",
                    _ => b"",
                };
                self.digits(value, self.radix(), &mut body);
            }
            b'c' => body.push(&[arguments.word() as u8]),
            b'p' => {
                sign = b"0x";
                let value = arguments.wide();
                body.push_format(format_args!("{value:x}"));
            }
            b's' => {
                let address = arguments.wide();
                arguments.memory.copy_string_up_to(address, self.precision.unwrap_or(usize::MAX), &mut body);
            }
            b'f' | b'F' | b'e' | b'E' | b'g' | b'G' | b'a' | b'A' => {
                let value = f64::from_bits(arguments.wide());
                sign = self.sign(value.is_sign_negative());
                self.float(value.abs(), &mut body);
            }
            // Not a conversion: printed as it is.
            other => body.push(&[b'%', other]),
        }
        self.pad(sign, body.bytes(), text);
    }

    fn sign(&self, is_negative: bool) -> &'static [u8] {
        match (is_negative, self.plus, self.space) {
            (true, _, _) => b"-",
            (_, true, _) => b"+",
            (_, _, true) => b" ",
            _ => b"",
        }
    }

    fn radix(&self) -> u64 {
        match self.conversion {
            b'x' | b'X' => 16,
            b'o' => 8,
            _ => 10,
        }
    }

    fn digits(&self, value: u64, radix: u64, body: &mut Text) {
        let mut digits = Text::new();
        match (radix, self.conversion) {
            (16, b'X') => digits.push_format(format_args!("{value:X}")),
            (16, _) => digits.push_format(format_args!("{value:x}")),
            (8, _) => digits.push_format(format_args!("{value:o}")),
            _ => digits.push_format(format_args!("{value}")),
        }
        if self.precision == Some(0) && value == 0 {
            return;
        }
        for _ in digits.bytes().len()..self.precision.unwrap_or(0).min(TEXT_BYTES_MAX) {
            body.push(b"0");
        }
        body.push(digits.bytes());
    }

    /// By the C library: its rules for `%g` and rounding are the ones that programs expect.
    fn float(&self, value: f64, body: &mut Text) {
        let format = [b'%', if self.alternate { b'#' } else { b'0' }, b'.', b'*', self.conversion, 0];
        let room = TEXT_BYTES_MAX - body.len;
        let precision = self.precision.map_or(-1, |precision| precision.min(TEXT_BYTES_MAX) as libc::c_int);
        // SAFETY: the format takes an int and a double, and `room` bytes are there.
        let len = unsafe {
            let place = body.bytes.as_mut_ptr().add(body.len);
            libc::snprintf(place.cast(), room, format.as_ptr().cast(), precision, value)
        };
        body.len += (len.max(0) as usize).min(room.saturating_sub(1));
    }

    fn pad(&self, sign: &[u8], body: &[u8], text: &mut Text) {
        let missing = self.width.saturating_sub(sign.len() + body.len());
        let is_number = !matches!(self.conversion, b's' | b'c' | b'p');
        let zeros = self.zero && !self.left && is_number;
        let spaces = |text: &mut Text| (0..missing).for_each(|_| text.push(b" "));
        if !self.left && !zeros {
            spaces(text);
        }
        text.push(sign);
        if zeros {
            (0..missing).for_each(|_| text.push(b"0"));
        }
        text.push(body);
        if self.left {
            spaces(text);
        }
    }
}
