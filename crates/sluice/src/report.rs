//! `sluice run --require-gpu` and `--report`: what continuous integration wants to know of a run.
//!
//! The report has JUnit's XML format, which CI systems show beside the report of the tests
//! themselves. It has a suite for each lease with a case for each process that used it, and a suite
//! for the run.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use quick_junit::{NonSuccessKind, TestCase, TestCaseStatus, TestSuite};
use sluice_cuda::CUresult;
use sluice_wire::control::ProcessUsage;

use crate::child::{EXIT_NO_KERNEL, EXIT_SLUICE_FAILED, NotStarted};
use crate::cli::{GpuChoice, RunArgs};
use crate::run::{failed, program_name};
use crate::used::{Used, Uses};

/// What is known of a run so far.
pub(crate) struct Report {
    program: String,
    requires_gpu: bool,
    /// Where the report goes.
    file: Option<(PathBuf, File)>,
    uses: Uses,
}

impl Report {
    /// Opens the file before anything is leased, so that a run is not in vain. A report of an
    /// earlier run is emptied: it would be taken for that of this one, if this one does not end.
    pub(crate) fn begin(arguments: &RunArgs) -> Result<Report, NotStarted> {
        if arguments.ci.require_gpu && matches!(arguments.gpus, Some(GpuChoice::Recording { .. })) {
            return Err(failed("--require-gpu: a recording GPU runs no kernel; take --gpus software"));
        }
        let open = |path: &PathBuf| match File::create(path) {
            Ok(file) => Ok((path.clone(), file)),
            Err(error) => Err(failed(format!("--report {}: {error}", path.display()))),
        };
        Ok(Report {
            program: program_name(&arguments.program),
            requires_gpu: arguments.ci.require_gpu,
            file: arguments.ci.report.as_ref().map(open).transpose()?,
            uses: Uses::new(),
        })
    }

    /// Adds what tasks have used.
    pub(crate) fn add(&mut self, uses: Uses) {
        self.uses.extend(uses);
    }

    /// Writes the report. The answer is the exit code of the run whose program ended with `code`.
    pub(crate) fn end(mut self, code: i32) -> Result<i32, NotStarted> {
        if let Some((path, mut file)) = self.file.take() {
            let written = self.xml(code).and_then(|xml| Ok(file.write_all(xml.as_bytes())?));
            if let Err(error) = written {
                let message = format!("--report {}: {error:#}", path.display());
                return Err(NotStarted {
                    message,
                    exit_code: if code == 0 { EXIT_SLUICE_FAILED } else { code },
                });
            }
        }
        if code == 0 && self.lacks_kernel() {
            let message = "--require-gpu: the program succeeded and launched no kernel. Its tests may have been skipped, or it \
                           did not find the GPU: SLUICE_LOG_ERRORS=1 shows the driver functions that fail";
            return Err(NotStarted { message: message.into(), exit_code: EXIT_NO_KERNEL });
        }
        Ok(code)
    }

    fn lacks_kernel(&self) -> bool {
        let launched = |used: &Result<Used, String>| used.as_ref().is_ok_and(|used| used.usage.kernels > 0);
        self.requires_gpu && !self.uses.iter().any(launched)
    }

    fn xml(&self, code: i32) -> anyhow::Result<String> {
        let mut report = quick_junit::Report::new("sluice run");
        report.add_test_suite(self.run_suite(code));
        for used in self.uses.iter().flatten() {
            report.add_test_suite(lease_suite(used));
        }
        Ok(report.to_string()?)
    }

    /// The run as a whole.
    fn run_suite(&self, code: i32) -> TestSuite {
        let mut suite = TestSuite::new("sluice run");
        suite.add_property(("exit-code", code.to_string().as_str()));
        let program = match code {
            0 => TestCaseStatus::success(),
            code => failure("exit-code", format!("the program ended with exit code {code}")),
        };
        suite.add_test_case(case(&self.program, "sluice.program", program));
        if self.requires_gpu {
            let status = match self.lacks_kernel() {
                false => TestCaseStatus::success(),
                true => failure("no-kernel", "the program launched no kernel".into()),
            };
            suite.add_test_case(case("a kernel was launched", "sluice.require-gpu", status));
        }
        for lost in self.uses.iter().filter_map(|used| used.as_ref().err()) {
            let status = failure("lease", lost.clone());
            suite.add_test_case(case("the lease lasted", "sluice.lease", status));
        }
        suite
    }
}

fn lease_suite(used: &Used) -> TestSuite {
    let usage = &used.usage;
    let mut suite = TestSuite::new(used.place.as_str());
    suite.set_time(Duration::from_millis(usage.age_ms));
    for (name, value) in [
        ("kernels", usage.kernels.to_string()),
        ("gpu-time-s", seconds(usage.busy_us)),
        ("memory-peak-bytes", usage.memory_peak.to_string()),
        ("bytes-in", usage.bytes_in.to_string()),
        ("bytes-out", usage.bytes_out.to_string()),
        ("processes-not-listed", used.omitted.to_string()),
    ] {
        suite.add_property((name, value.as_str()));
    }
    suite.add_test_cases(
        used.processes.iter().map(|(process, command)| process_case(process, command.as_deref())),
    );
    suite
}

fn process_case(process: &ProcessUsage, command: Option<&str>) -> TestCase {
    let name = command.map_or_else(|| format!("process {}", process.process), str::to_owned);
    let mut case = case(&name, "sluice.process", process_status(process));
    case.set_time(Duration::from_millis(process.age_ms));
    for (name, value) in [
        ("process", process.process.to_string()),
        ("kernels", process.kernels.to_string()),
        ("gpu-time-s", seconds(process.busy_us)),
        ("bytes-in", process.bytes_in.to_string()),
        ("bytes-out", process.bytes_out.to_string()),
    ] {
        case.add_property((name, value.as_str()));
    }
    case
}

/// A process fails by a fault, or by the end of its session before its own.
fn process_status(process: &ProcessUsage) -> TestCaseStatus {
    match CUresult(process.fault) {
        CUresult::SUCCESS if process.end.is_empty() => TestCaseStatus::success(),
        CUresult::SUCCESS => failure("session", process.end.clone()),
        fault => {
            let text = |text: Option<&'static std::ffi::CStr>| text.unwrap_or(c"unknown").to_string_lossy();
            let message = format!("{}: {}", text(fault.name()), text(fault.description()));
            failure(&text(fault.name()), message)
        }
    }
}

fn case(name: &str, class: &str, status: TestCaseStatus) -> TestCase {
    let mut case = TestCase::new(name, status);
    case.set_classname(class);
    case
}

fn failure(kind: &str, message: String) -> TestCaseStatus {
    let mut status = TestCaseStatus::non_success(NonSuccessKind::Failure);
    status.set_type(kind).set_message(message);
    status
}

fn seconds(microseconds: u64) -> String {
    format!("{:.6}", Duration::from_micros(microseconds).as_secs_f64())
}

#[cfg(test)]
mod tests {
    use sluice_wire::control::Usage;

    use super::*;

    fn process(process: u32, kernels: u64, fault: i32, end: &str) -> ProcessUsage {
        let (age_ms, bytes_in, bytes_out, busy_us) = (1500, 10, 20, 250_000);
        let end = end.to_owned();
        ProcessUsage { session: 1, process, age_ms, kernels, bytes_in, bytes_out, busy_us, fault, end }
    }

    fn report(requires_gpu: bool, processes: Vec<(ProcessUsage, Option<String>)>) -> Report {
        let kernels = processes.iter().map(|(process, _)| process.kernels).sum();
        let usage = Usage {
            age_ms: 2000,
            sessions: 1,
            kernels,
            bytes_in: 0,
            bytes_out: 0,
            busy_us: 0,
            memory_peak: 0,
        };
        let used = Used { place: "100% of a GPU".into(), usage, processes, omitted: 0 };
        Report { program: "pytest".into(), requires_gpu, file: None, uses: vec![Ok(used)] }
    }

    #[test]
    fn a_run_without_a_kernel_fails_only_if_a_gpu_is_required_and_the_program_did_not_fail() {
        let end = |requires_gpu, kernels, code| {
            let report = report(requires_gpu, vec![(process(7, kernels, 0, ""), None)]);
            report.end(code).map_err(|failure| failure.exit_code)
        };
        assert_eq!(end(true, 0, 0), Err(EXIT_NO_KERNEL));
        assert_eq!(end(true, 0, 5), Ok(5), "the program's own failure says more");
        assert_eq!(end(true, 1, 0), Ok(0));
        assert_eq!(end(false, 0, 0), Ok(0));
        let lost =
            Report { program: String::new(), requires_gpu: true, file: None, uses: vec![Err("gone".into())] };
        assert_eq!(lost.end(0).map_err(|failure| failure.exit_code), Err(EXIT_NO_KERNEL));
    }

    #[test]
    fn each_process_is_a_case_and_a_fault_is_its_failure() {
        let processes = vec![
            (process(7, 3, 0, ""), Some("python -m pytest <a> & b".to_owned())),
            (process(8, 1, CUresult::ILLEGAL_ADDRESS.0, ""), None),
            (process(9, 1, 0, "its worker has ended (signal: 11)"), None),
        ];
        let xml = report(true, processes).xml(1).unwrap();
        let read = quick_junit::Report::deserialize_from_str(&xml).unwrap();
        assert_eq!((read.tests, read.failures), (5, 3), "{xml}");
        let cases = &read.test_suites[1].test_cases;
        assert_eq!(cases[0].name.as_str(), "python -m pytest <a> & b");
        let kernels = cases[0].properties.iter().find(|property| property.name.as_str() == "kernels");
        assert_eq!(kernels.unwrap().value.as_str(), "3");
        assert!(xml.contains("CUDA_ERROR_ILLEGAL_ADDRESS"), "{xml}");
        assert!(xml.contains("its worker has ended (signal: 11)"), "{xml}");
    }
}
