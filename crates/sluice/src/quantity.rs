//! Quantities that people write and read: shares, memory sizes, times.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use sluice_node::SwapFileConfig;

/// A fraction of a GPU's compute time, above 0 and at most 1, kept in parts in a million.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share(u32);

impl Share {
    const WHOLE_PPM: u32 = 1_000_000;
    /// A whole GPU.
    pub(crate) const WHOLE: Share = Share(Share::WHOLE_PPM);

    pub(crate) fn ppm(self) -> u32 {
        self.0
    }

    pub(crate) fn from_ppm(ppm: u32) -> Share {
        Share(ppm)
    }
}

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Share, String> {
        const EXPECTED: &str = "a share is above 0 and at most 1 (the whole GPU), such as 0.25 or 25%";
        let (digits, scale) = match text.strip_suffix('%') {
            Some(digits) => (digits, 100.0),
            None => (text, 1.0),
        };
        let fraction = digits.trim().parse::<f64>().map_err(|_| EXPECTED.to_string())? / scale;
        let ppm = (fraction * f64::from(Share::WHOLE_PPM)).round();
        if ppm >= 1.0 && ppm <= f64::from(Share::WHOLE_PPM) {
            Ok(Share(ppm as u32))
        } else {
            Err(EXPECTED.to_string())
        }
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Up to four digits after the point, none that say nothing: 25%, 33.3333%.
        let percent = format!("{:.4}", f64::from(self.0) / 10_000.0);
        f.pad(&format!("{}%", percent.trim_end_matches('0').trim_end_matches('.')))
    }
}

/// Units of compute, in thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Units(u64);

impl Units {
    pub(crate) fn milli(self) -> u64 {
        self.0
    }
}

impl FromStr for Units {
    type Err = String;

    fn from_str(text: &str) -> Result<Units, String> {
        let milli = text.trim().parse::<f64>().map_or(0.0, |units| (units * 1000.0).round());
        if (1.0..=1e9).contains(&milli) {
            Ok(Units(milli as u64))
        } else {
            Err("a number of units (TFLOPS) is 0.001 or more, such as 5 or 2.5".into())
        }
    }
}

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Memory(u64);

impl Memory {
    pub(crate) fn bytes(self) -> u64 {
        self.0
    }

    pub(crate) fn from_bytes(bytes: u64) -> Memory {
        Memory(bytes)
    }
}

/// Longest first, so that a suffix that ends in another is found.
const UNITS: [(&str, u64); 13] = [
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
    ("kb", 1000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
    ("k", 1 << 10),
    ("m", 1 << 20),
    ("g", 1 << 30),
    ("t", 1 << 40),
    ("b", 1),
];

impl FromStr for Memory {
    type Err = String;

    /// `8GiB`, `512MiB`, `1.5GiB`; `8G` is `8GiB`, as for `docker run --memory`; `8GB` is
    /// 8,000,000,000 bytes.
    fn from_str(text: &str) -> Result<Memory, String> {
        let lower = text.trim().to_ascii_lowercase();
        let unit = UNITS.iter().find_map(|(unit, size)| lower.strip_suffix(unit).map(|rest| (rest, *size)));
        let Some((digits, unit_bytes)) = unit else {
            return Err(format!("{text:?} has no unit: write {text}MiB or {text}GiB"));
        };
        let amount: f64 = digits
            .trim()
            .parse()
            .map_err(|_| format!("{text:?} is not a size: expected a number and a unit, such as 8GiB"))?;
        let bytes = amount * unit_bytes as f64;
        if bytes >= 1.0 && bytes < u64::MAX as f64 {
            Ok(Memory(bytes as u64))
        } else {
            Err(format!("{text:?} is not a size that memory can have"))
        }
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, size) = match self.0 {
            0..1024 => return f.pad(&format!("{} B", self.0)),
            1024..0x10_0000 => ("KiB", 1u64 << 10),
            0x10_0000..0x4000_0000 => ("MiB", 1 << 20),
            0x4000_0000..0x100_0000_0000 => ("GiB", 1 << 30),
            _ => ("TiB", 1 << 40),
        };
        let amount = self.0 as f64 / size as f64;
        let digits = if self.0.is_multiple_of(size) { 0 } else { 1 };
        f.pad(&format!("{amount:.digits$} {unit}"))
    }
}

/// A length of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Period(Duration);

impl Period {
    pub(crate) fn duration(self) -> Duration {
        self.0
    }

    pub(crate) fn from_duration(duration: Duration) -> Period {
        Period(duration)
    }
}

/// How many times the memory of a GPU is leased, as `--overcommit` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Overcommit {
    ppm: u64,
}

impl Overcommit {
    /// Beyond this, programs would have their memory on the GPU too rarely to get anywhere.
    const MAX: f64 = 16.0;

    /// In millionths of the memory.
    pub(crate) fn ppm(self) -> u64 {
        self.ppm
    }
}

impl FromStr for Overcommit {
    type Err = String;

    fn from_str(text: &str) -> Result<Overcommit, String> {
        let factor: f64 =
            text.trim().parse().map_err(|_| format!("{text:?} is not a number, such as 2.0"))?;
        if (1.0..=Overcommit::MAX).contains(&factor) {
            Ok(Overcommit { ppm: (factor * 1e6).round() as u64 })
        } else {
            let most = Overcommit::MAX;
            Err(format!(
                "memory is leased 1.0 to {most} times, and {text:?} is not in between; 1.0 leases what the GPU has"
            ))
        }
    }
}

/// A folder and a size, as `--swap-file` names them: `/var/swap:64GiB`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SwapFile {
    folder: PathBuf,
    bytes: Option<u64>,
}

impl SwapFile {
    /// For a node.
    pub(crate) fn config(&self) -> SwapFileConfig {
        SwapFileConfig { folder: self.folder.clone(), bytes: self.bytes }
    }
}

impl FromStr for SwapFile {
    type Err = String;

    /// What follows the last colon is a size, unless there is a slash in it.
    fn from_str(text: &str) -> Result<SwapFile, String> {
        let (folder, size) = match text.rsplit_once(':') {
            Some((folder, size)) if !size.contains('/') => (folder, Some(size)),
            _ => (text, None),
        };
        if folder.is_empty() {
            return Err(format!("{text:?} names no folder; say FOLDER:SIZE, such as /var/tmp:64GiB"));
        }
        let bytes = size.map(|size| size.parse::<Memory>().map(Memory::bytes));
        let bytes = bytes.transpose().map_err(|error| error.to_string())?;
        Ok(SwapFile { folder: folder.into(), bytes })
    }
}

/// Seconds of each unit. Longest name first, so that a suffix that ends in another is found.
const PERIODS: [(&str, f64); 5] = [("min", 60.0), ("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3600.0)];

impl FromStr for Period {
    type Err = String;

    fn from_str(text: &str) -> Result<Period, String> {
        let text = text.trim();
        let unit =
            PERIODS.iter().find_map(|(unit, seconds)| text.strip_suffix(unit).map(|rest| (rest, *seconds)));
        let Some((digits, unit_s)) = unit else {
            return Err(format!("{text:?} has no unit: expected ms, s, min or h, such as 10s"));
        };
        let amount: f64 =
            digits.trim().parse().map_err(|_| format!("{text:?} is not a time, such as 10s"))?;
        match Duration::try_from_secs_f64(amount * unit_s) {
            Ok(duration) if duration >= Duration::from_millis(1) => Ok(Period(duration)),
            _ => Err(format!("{text:?} is not a time of at least 1ms")),
        }
    }
}

impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs_f64();
        let whole = self.0.as_secs();
        let text = match whole {
            0 if seconds < 1e-3 => format!("{:.0} us", seconds * 1e6),
            0 => format!("{:.0} ms", seconds * 1e3),
            1..60 => format!("{seconds:.1} s"),
            60..3600 => format!("{} min {} s", whole / 60, whole % 60),
            _ => format!("{} h {} min", whole / 3600, whole / 60 % 60),
        };
        f.pad(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn swap_files() {
        let parsed = |text: &str| text.parse::<SwapFile>().map(|file| (file.folder, file.bytes));
        assert_eq!(parsed("/var/tmp"), Ok(("/var/tmp".into(), None)));
        assert_eq!(parsed("/var/tmp:2GiB"), Ok(("/var/tmp".into(), Some(2 << 30))));
        assert_eq!(parsed("/a:b/c"), Ok(("/a:b/c".into(), None)));
        assert!(parsed(":2GiB").unwrap_err().contains("names no folder"));
        assert!(parsed("/var/tmp:much").is_err());
    }

    #[test]
    fn overcommits() {
        for (text, ppm) in [("1", 1_000_000), ("2.0", 2_000_000), ("1.5", 1_500_000), ("16", 16_000_000)] {
            assert_eq!(text.parse::<Overcommit>().map(Overcommit::ppm), Ok(ppm), "{text}");
        }
        for text in ["0.99", "0", "-2", "16.1", "NaN", "inf"] {
            let error = text.parse::<Overcommit>().expect_err(text);
            assert!(error.contains("1.0 to 16 times"), "{text}: {error}");
        }
        for text in ["", "200%", "twice"] {
            let error = text.parse::<Overcommit>().expect_err(text);
            assert!(error.contains("is not a number, such as 2.0"), "{text}: {error}");
        }
    }

    #[test]
    fn shares() {
        for (text, ppm) in
            [("1", 1_000_000), ("0.25", 250_000), ("25%", 250_000), ("5 %", 50_000), ("1e-6", 1)]
        {
            assert_eq!(text.parse::<Share>().map(Share::ppm), Ok(ppm), "{text}");
        }
        for text in ["0", "0%", "1.0001", "101%", "-0.5", "NaN", "inf", "", "%", "a quarter"] {
            let error = text.parse::<Share>().expect_err(text);
            assert!(error.contains("above 0 and at most 1"), "{text}: {error}");
        }
        assert_eq!(Share(250_000).to_string(), "25%");
        assert_eq!(Share(333_333).to_string(), "33.3333%");
        assert_eq!(Share(1_000_000).to_string(), "100%");
    }

    #[test]
    fn units() {
        for (text, milli) in [("5", 5000), ("2.5", 2500), ("0.001", 1), ("66.908", 66_908)] {
            assert_eq!(text.parse::<Units>().map(Units::milli), Ok(milli), "{text}");
        }
        for text in ["0", "-1", "0.0001", "NaN", "inf", "1e9", "", "many"] {
            assert!(text.parse::<Units>().expect_err(text).contains("0.001 or more"), "{text}");
        }
    }

    #[test]
    fn memory_sizes() {
        for (text, bytes) in [
            ("8GiB", 8 << 30),
            ("8g", 8 << 30),
            ("512 MiB", 512 << 20),
            ("1.5GiB", 3 << 29),
            ("2GB", 2_000_000_000),
            ("64k", 65536),
            ("100B", 100),
        ] {
            assert_eq!(text.parse::<Memory>().map(Memory::bytes), Ok(bytes), "{text}");
        }
        for (text, part) in [
            ("8", "no unit"),
            ("", "no unit"),
            ("GiB", "not a size"),
            ("xGiB", "not a size"),
            ("-1GiB", "not a size that"),
            ("0MiB", "not a size that"),
            ("1e30GiB", "not a size that"),
        ] {
            let error = text.parse::<Memory>().expect_err(text);
            assert!(error.contains(part), "{text}: {error}");
        }
        for (bytes, text) in
            [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (8 << 30, "8 GiB"), (3 << 29, "1.5 GiB")]
        {
            assert_eq!(Memory(bytes).to_string(), text);
        }
    }

    #[test]
    fn periods() {
        for (text, ms) in [
            ("10s", 10_000),
            ("500ms", 500),
            ("1.5s", 1500),
            ("2m", 120_000),
            ("20min", 1_200_000),
            ("1h", 3_600_000),
        ] {
            assert_eq!(text.parse::<Period>().map(|p| p.0.as_millis()), Ok(ms), "{text}");
        }
        for text in ["", "10", "0s", "-1s", "xs", "1e30h"] {
            assert!(text.parse::<Period>().is_err(), "{text}");
        }
        for (us, text) in [(15, "15 us"), (2_500, "2 ms"), (1_500_000, "1.5 s"), (61_000_000, "1 min 1 s")] {
            assert_eq!(Period(Duration::from_micros(us)).to_string(), text);
        }
    }
}
