//! `sluice fit`: the memory that a model needs, and the GPUs that have it.

use std::process::ExitCode;

use anyhow::{Result, ensure};
use serde::Serialize;
use sluice_iq::fit::{Inference, Model, Optimizer, Part, Precision, Training, inference, total, training};

use crate::cli::{FitArgs, OptimizerArg, Output, PrecisionArg};
use crate::quantity::Memory;
use crate::table;
use crate::table::Align::{Left, Right};

/// Memory of well-known GPUs in MiB, as NVIDIA's driver shows it.
const GPUS: [(&str, u64); 9] = [
    ("T4", 15_360),
    ("L4", 23_034),
    ("RTX 4090", 24_564),
    ("A100 40GB", 40_960),
    ("L40S", 46_068),
    ("A100 80GB", 81_920),
    ("H100 80GB", 81_559),
    ("H200", 143_771),
    ("B200", 183_359),
];
const MIB: u64 = 1 << 20;
/// What is asked for is a multiple of it.
const STEP: u64 = 256 * MIB;

#[derive(Serialize)]
struct Answer {
    model: Model,
    parts: Vec<Part>,
    total_bytes: u64,
    gpus: Vec<Gpu>,
}

#[derive(Serialize)]
struct Gpu {
    name: String,
    memory_bytes: u64,
    /// How many are needed at least, if what is needed is split evenly.
    at_least: u64,
    /// The part of the memory of each that is needed.
    part: f64,
}

pub(crate) fn fit(arguments: &FitArgs) -> Result<ExitCode> {
    let model = model(arguments)?;
    let precision = arguments.precision.into();
    let (batch, sequence) = (arguments.batch, arguments.sequence);
    let parts = match arguments.optimizer {
        Some(optimizer) => {
            ensure!(
                !matches!(precision, Precision::Fp8 | Precision::Int8 | Precision::Int4)
                    || arguments.lora.is_some(),
                "weights below 16 bits are not trained: choose --precision bf16, or train adapters with --lora"
            );
            let how = Training {
                precision,
                optimizer: optimizer.into(),
                batch,
                sequence,
                lora_rank: arguments.lora,
                checkpointing: arguments.checkpointing,
            };
            training(&model, &how)
        }
        None => {
            let cache = arguments.cache.map_or(Precision::Bf16, Into::into);
            inference(&model, &Inference { precision, cache, batch, sequence })
        }
    };
    let total_bytes = (total(&parts) as u64).next_multiple_of(STEP);
    let answer = Answer { model, parts, total_bytes, gpus: gpus(total_bytes, arguments.gpu_memory) };
    match arguments.output {
        Output::Json => println!("{}", serde_json::to_string_pretty(&answer)?),
        Output::Table => print(&answer, is_shape_given(arguments)),
    }
    Ok(ExitCode::SUCCESS)
}

fn is_shape_given(arguments: &FitArgs) -> bool {
    arguments.layers.is_some() && arguments.hidden.is_some()
}

fn model(arguments: &FitArgs) -> Result<Model> {
    let usual = Model::of_size(arguments.params);
    let hidden = arguments.hidden.unwrap_or(usual.hidden);
    let heads = arguments.heads.unwrap_or((hidden / 128.0).round().max(1.0));
    let kv_heads = arguments.kv_heads.unwrap_or(heads);
    ensure!(kv_heads <= heads, "--kv-heads {kv_heads} is more than the {heads} heads of the model");
    let layers = arguments.layers.unwrap_or(usual.layers);
    Ok(Model { layers, hidden, heads, kv_heads, vocabulary: arguments.vocabulary, ..usual })
}

fn gpus(needed: u64, own: Option<Memory>) -> Vec<Gpu> {
    let own = own.map(|memory| ("(--gpu-memory)", memory.bytes()));
    let known = GPUS.iter().map(|&(name, mib)| (name, mib * MIB));
    let gpu = |(name, memory): (&str, u64)| {
        let at_least = needed.div_ceil(memory.max(1));
        let part = needed as f64 / at_least as f64 / memory as f64;
        Gpu { name: name.into(), memory_bytes: memory, at_least, part }
    };
    known.chain(own).map(gpu).collect()
}

fn print(answer: &Answer, is_shape_given: bool) {
    let text = |bytes: u64| Memory::from_bytes(bytes).to_string();
    let mut rows: Vec<Vec<String>> = answer
        .parts
        .iter()
        .map(|part| vec![part.name.into(), text(part.bytes as u64), part.formula.clone()])
        .collect();
    rows.push(vec!["together".into(), text(answer.total_bytes), "up to the next 256 MiB".into()]);
    print!("{}", table::render(&[("PART", Left), ("MEMORY", Right), ("FROM", Left)], &rows));
    println!();
    let columns = &[("GPU", Left), ("MEMORY", Right), ("NEEDS", Left)];
    let rows: Vec<Vec<String>> =
        answer.gpus.iter().map(|gpu| vec![gpu.name.clone(), text(gpu.memory_bytes), needs(gpu)]).collect();
    print!("{}", table::render(columns, &rows));
    if !is_shape_given {
        let Model { layers, hidden, heads, kv_heads, .. } = answer.model;
        eprintln!(
            "\nThe shape is a guess: {layers} layers, {hidden} hidden numbers, {heads} heads, {kv_heads} of \
             keys and values. Give --layers, --hidden, --heads and --kv-heads of the model."
        );
    }
    eprintln!("\nTo ask for it: sluice run --memory {}MiB -- ...", answer.total_bytes / MIB);
}

/// `34 % of one`, `3 at least, if split evenly`
fn needs(gpu: &Gpu) -> String {
    match gpu.at_least {
        1 => format!("{:.0} % of one", (100.0 * gpu.part).ceil()),
        count => format!("{count} at least, if split evenly"),
    }
}

impl From<PrecisionArg> for Precision {
    fn from(precision: PrecisionArg) -> Precision {
        match precision {
            PrecisionArg::Fp32 => Precision::Fp32,
            PrecisionArg::Bf16 => Precision::Bf16,
            PrecisionArg::Fp16 => Precision::Fp16,
            PrecisionArg::Fp8 => Precision::Fp8,
            PrecisionArg::Int8 => Precision::Int8,
            PrecisionArg::Int4 => Precision::Int4,
        }
    }
}

impl From<OptimizerArg> for Optimizer {
    fn from(optimizer: OptimizerArg) -> Optimizer {
        match optimizer {
            OptimizerArg::Adamw => Optimizer::Adamw,
            OptimizerArg::Adamw8bit => Optimizer::Adamw8bit,
            OptimizerArg::Momentum => Optimizer::Momentum,
            OptimizerArg::Sgd => Optimizer::Sgd,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    fn arguments(line: &str) -> FitArgs {
        let Command::Fit(arguments) = Cli::parse_from(line.split(' ')).command else { panic!("{line}") };
        arguments
    }

    #[test]
    fn what_fits_is_a_part_of_a_gpu_and_what_does_not_is_split() {
        let found = gpus(16 << 30, Some(Memory::from_bytes(8 << 30)));
        let text: Vec<(&str, String)> = found.iter().map(|gpu| (gpu.name.as_str(), needs(gpu))).collect();
        assert_eq!(text[0], ("T4", "2 at least, if split evenly".into()));
        assert_eq!(text[6], ("H100 80GB", "21 % of one".into()));
        assert_eq!(text[9], ("(--gpu-memory)", "2 at least, if split evenly".into()));
    }

    #[test]
    fn impossible_requests_are_named() {
        let wrong = fit(&arguments("sluice fit --params 8e9 --precision int4 --optimizer adamw"));
        assert!(wrong.unwrap_err().to_string().contains("--lora"));
        let wrong = fit(&arguments("sluice fit --params 8e9 --heads 8 --kv-heads 9"));
        assert!(wrong.unwrap_err().to_string().contains("more than the 8 heads"));
        for line in ["sluice fit --params 0", "sluice fit --params 1e9 --lora 8", "sluice fit --params x"] {
            assert!(Cli::try_parse_from(line.split(' ')).is_err(), "{line}");
        }
    }
}
