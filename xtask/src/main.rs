//! `cargo xtask`; see the library of this name.

fn main() -> std::process::ExitCode {
    xtask::main()
}
