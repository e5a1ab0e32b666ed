//! The end-to-end tests as a program of its own; see the library of this package.

fn main() -> std::process::ExitCode {
    sluice_e2e::main()
}
