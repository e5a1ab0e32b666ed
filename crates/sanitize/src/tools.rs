//! What the sanitizer looks for.

use std::fmt;
use std::str::FromStr;

/// The tools of the sanitizer, each named as that of NVIDIA's compute-sanitizer which looks for the
/// same errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tools {
    /// Accesses outside of allocations, of freed memory, and at misaligned addresses.
    pub memcheck: bool,
    /// Reads of device memory that was never written.
    pub initcheck: bool,
    /// Accesses of several threads to the same memory without an order.
    pub racecheck: bool,
    /// Wrong use of barriers and of member masks.
    pub synccheck: bool,
    /// Device memory that is never freed.
    pub leakcheck: bool,
}

/// A text that names no tool.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no tool of the sanitizer: memcheck, initcheck, racecheck, synccheck, leakcheck, or all")]
pub struct UnknownTool(String);

impl Tools {
    const NONE: Tools =
        Tools { memcheck: false, initcheck: false, racecheck: false, synccheck: false, leakcheck: false };
    const ALL: Tools =
        Tools { memcheck: true, initcheck: true, racecheck: true, synccheck: true, leakcheck: true };

    fn named(&self) -> [(&'static str, bool); 5] {
        [
            ("memcheck", self.memcheck),
            ("initcheck", self.initcheck),
            ("racecheck", self.racecheck),
            ("synccheck", self.synccheck),
            ("leakcheck", self.leakcheck),
        ]
    }
}

impl Default for Tools {
    /// All but the search for leaks: many programs leave their memory to the end of the process.
    fn default() -> Tools {
        Tools { leakcheck: false, ..Tools::ALL }
    }
}

impl FromStr for Tools {
    type Err = UnknownTool;

    fn from_str(text: &str) -> Result<Tools, UnknownTool> {
        let mut tools = Tools::NONE;
        for name in text.split(',') {
            match name {
                "memcheck" => tools.memcheck = true,
                "initcheck" => tools.initcheck = true,
                "racecheck" => tools.racecheck = true,
                "synccheck" => tools.synccheck = true,
                "leakcheck" => tools.leakcheck = true,
                "all" => tools = Tools::ALL,
                _ => return Err(UnknownTool(name.to_owned())),
            }
        }
        Ok(tools)
    }
}

impl fmt::Display for Tools {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> =
            self.named().iter().filter(|(_, is_on)| *is_on).map(|(name, _)| *name).collect();
        f.write_str(&names.join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tools_are_read_as_they_are_written() {
        for text in ["memcheck", "initcheck,racecheck", "memcheck,initcheck,racecheck,synccheck,leakcheck"] {
            assert_eq!(text.parse::<Tools>().unwrap().to_string(), text);
        }
        assert_eq!("all".parse(), Ok(Tools::ALL));
        assert_eq!(Tools::default().to_string(), "memcheck,initcheck,racecheck,synccheck");
        for wrong in ["", "memcheck,", "Memcheck", "races"] {
            assert!(wrong.parse::<Tools>().is_err(), "{wrong}");
        }
    }
}
