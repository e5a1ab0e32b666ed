//! Arguments of `sluice fit`.

use clap::{Args, ValueEnum};

use super::Output;
use crate::quantity::Memory;

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sluice fit --params 8e9 --batch 16 --sequence 8192                      answering, from a cache of 16 sequences
  sluice fit --params 8e9 --layers 32 --hidden 4096 --heads 32 --kv-heads 8 --vocabulary 128256 --precision int4
  sluice fit --params 1.3e9 --optimizer adamw --batch 8 --sequence 2048   training
  sluice fit --params 8e9 --optimizer adamw --lora 16 --checkpointing     training adapters")]
pub(crate) struct FitArgs {
    /// Parameters of the model, such as 8e9
    #[arg(long, value_name = "NUMBER", value_parser = positive)]
    pub(crate) params: f64,

    /// Layers [default: of the usual shape for this number of parameters]
    #[arg(long, value_name = "NUMBER", value_parser = positive)]
    pub(crate) layers: Option<f64>,

    /// Hidden numbers of a token [default: of the usual shape]
    #[arg(long, value_name = "NUMBER", value_parser = positive)]
    pub(crate) hidden: Option<f64>,

    /// Attention heads [default: one for 128 hidden numbers]
    #[arg(long, value_name = "NUMBER", value_parser = positive)]
    pub(crate) heads: Option<f64>,

    /// Heads of keys and values, where they are grouped [default: as many as --heads]
    #[arg(long, value_name = "NUMBER", value_parser = positive)]
    pub(crate) kv_heads: Option<f64>,

    /// Words that the model knows
    #[arg(long, value_name = "NUMBER", value_parser = positive, default_value = "32000")]
    pub(crate) vocabulary: f64,

    /// Of weights, and of gradients in training
    #[arg(long, value_name = "NAME", default_value = "bf16")]
    pub(crate) precision: PrecisionArg,

    /// Sequences at once
    #[arg(long, value_name = "NUMBER", value_parser = positive, default_value = "1")]
    pub(crate) batch: f64,

    /// Tokens of a sequence
    #[arg(long, value_name = "NUMBER", value_parser = positive, default_value = "4096")]
    pub(crate) sequence: f64,

    /// Train with this optimizer; without it, the model answers
    #[arg(long, value_name = "NAME")]
    pub(crate) optimizer: Option<OptimizerArg>,

    /// Train adapters of this rank alone
    #[arg(long, value_name = "RANK", value_parser = positive, requires = "optimizer")]
    pub(crate) lora: Option<f64>,

    /// Compute activations inside layers again instead of keeping them
    #[arg(long, requires = "optimizer")]
    pub(crate) checkpointing: bool,

    /// Of keys and values in the cache [default: bf16]
    #[arg(long, value_name = "NAME", conflicts_with = "optimizer")]
    pub(crate) cache: Option<PrecisionArg>,

    /// A GPU with this much memory, beside the known ones
    #[arg(long, value_name = "SIZE")]
    pub(crate) gpu_memory: Option<Memory>,

    /// How to print
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    pub(crate) output: Output,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum PrecisionArg {
    Fp32,
    Bf16,
    Fp16,
    Fp8,
    Int8,
    Int4,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum OptimizerArg {
    /// Two moments of 32 bits
    Adamw,
    /// Two moments of 8 bits
    Adamw8bit,
    /// One moment of 32 bits
    Momentum,
    /// None
    Sgd,
}

fn positive(text: &str) -> Result<f64, String> {
    match text.replace('_', "").parse::<f64>() {
        Ok(number) if (1.0..=1e15).contains(&number) => Ok(number),
        _ => Err("expected a number from 1 to 1e15, such as 4096 or 8e9".into()),
    }
}
