//! What a transformer needs of a GPU's memory, from its size and how it is run.
//!
//! Every part is a formula that is shown with it. Sources: Rajbhandari et al. 2020 ("ZeRO", section
//! 3) for what is kept per parameter; Korthikanti et al. 2022 ("Reducing Activation Recomputation
//! in Large Transformer Models", section 4) for activations; Hu et al. 2021 ("LoRA") for adapters.

use serde::Serialize;

/// What drivers and libraries take of a GPU before the first tensor: context, kernels, workspaces.
const CONTEXT_BYTES: f64 = 700.0 * (1 << 20) as f64;
/// Memory that allocators keep and cannot use, in per cent of what is in use.
const FRAGMENTATION_PERCENT: f64 = 5.0;
/// What is kept of an output while a training step turns round: itself, its logarithm and its
/// gradient, of 32 bits each, or with two of them of 16 bits as well.
const OUTPUT_BYTES: f64 = 12.0;
/// Tokens that servers take at once into the cache.
const PREFILL_TOKENS: f64 = 2048.0;

/// How a number is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    Fp32,
    Bf16,
    Fp16,
    Fp8,
    Int8,
    Int4,
}

impl Precision {
    /// Size of one number in bytes. 4-bit weights have a scale of 16 bits for each 64 of them.
    pub fn bytes(self) -> f64 {
        match self {
            Precision::Fp32 => 4.0,
            Precision::Bf16 | Precision::Fp16 => 2.0,
            Precision::Fp8 | Precision::Int8 => 1.0,
            Precision::Int4 => 0.5 + 2.0 / 64.0,
        }
    }
}

/// What an optimizer keeps of each trained parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Optimizer {
    /// Two moments.
    Adamw,
    /// Two moments of 8 bits.
    Adamw8bit,
    /// One moment.
    Momentum,
    /// Nothing.
    Sgd,
}

impl Optimizer {
    /// Bytes per trained parameter, beside the parameter itself.
    fn bytes(self) -> f64 {
        match self {
            Optimizer::Adamw => 8.0,
            Optimizer::Adamw8bit => 2.0,
            Optimizer::Momentum => 4.0,
            Optimizer::Sgd => 0.0,
        }
    }
}

/// The shape of a decoder-only transformer.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Model {
    pub parameters: f64,
    pub layers: f64,
    pub hidden: f64,
    pub heads: f64,
    /// Heads of keys and values: fewer than `heads` where they are grouped.
    pub kv_heads: f64,
    pub vocabulary: f64,
}

impl Model {
    /// A model of the usual shape with this number of parameters: 128 hidden numbers for each
    /// layer, 12 `layers` x `hidden`² parameters in all layers together, heads of 128 numbers,
    /// 32,000 words.
    pub fn of_size(parameters: f64) -> Model {
        let layers = (parameters / (12.0 * 128.0 * 128.0)).cbrt().round().max(1.0);
        let hidden = ((parameters / (12.0 * layers)).sqrt() / 64.0).round().max(1.0) * 64.0;
        let heads = (hidden / 128.0).round().max(1.0);
        Model { parameters, layers, hidden, heads, kv_heads: heads, vocabulary: 32_000.0 }
    }
}

/// How a model is trained.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Training {
    /// Of weights and gradients. Where it is less than 32 bits, a copy of 32 bits is kept of
    /// trained weights.
    pub precision: Precision,
    pub optimizer: Optimizer,
    /// Sequences that go forward and back at once.
    pub batch: f64,
    /// Tokens of a sequence.
    pub sequence: f64,
    /// The rank of adapters of the four attention matrices; the weights are frozen then.
    pub lora_rank: Option<f64>,
    /// Activations inside layers are computed again on the way back.
    pub checkpointing: bool,
}

/// How a model answers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Inference {
    pub precision: Precision,
    /// Of keys and values in the cache.
    pub cache: Precision,
    /// Sequences at once.
    pub batch: f64,
    /// Tokens of a sequence, question and answer together.
    pub sequence: f64,
}

/// A part of the memory.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Part {
    pub name: &'static str,
    pub bytes: f64,
    /// How it is computed, with the numbers.
    pub formula: String,
}

/// The parts of the memory that training needs on one GPU.
pub fn training(model: &Model, how: &Training) -> Vec<Part> {
    let Model { parameters, layers, hidden, .. } = *model;
    let weight = how.precision.bytes();
    let mut parts = vec![part("weights", parameters * weight, format!("{} x {weight} B", count(parameters)))];
    let trained = match how.lora_rank {
        None => parameters,
        Some(rank) => {
            let keys = hidden * model.kv_heads / model.heads;
            let trained = layers * rank * (2.0 * (hidden + hidden) + 2.0 * (hidden + keys));
            parts.push(part("adapters", trained * weight, format!("{} x {weight} B", count(trained))));
            trained
        }
    };
    parts.push(part("gradients", trained * weight, format!("{} x {weight} B", count(trained))));
    let copy = if weight < 4.0 { 4.0 } else { 0.0 };
    let state = how.optimizer.bytes() + copy;
    let what = format!("{} x ({} B of moments + {copy} B)", count(trained), how.optimizer.bytes());
    parts.push(part("optimizer", trained * state, what));
    parts.push(activations(model, how));
    let tokens = how.batch * how.sequence;
    let formula = format!("{} tokens x {} words x {OUTPUT_BYTES} B", count(tokens), count(model.vocabulary));
    parts.push(part("outputs", tokens * model.vocabulary * OUTPUT_BYTES, formula));
    rest(parts)
}

/// 34 bytes a token, layer and hidden number in 16 bits, with attention that does not keep its
/// scores.
fn activations(model: &Model, how: &Training) -> Part {
    let scale = if how.precision == Precision::Fp32 { 2.0 } else { 1.0 };
    let (tokens, hidden) = (how.batch * how.sequence, model.hidden);
    let (inside, between) = (34.0 * scale, 2.0 * scale);
    let sizes = format!("{} tokens x {} hidden", count(tokens), count(hidden));
    if how.checkpointing {
        let each = between * model.layers + inside;
        let formula = format!("{sizes} x ({} layers x {between} B + {inside} B)", model.layers);
        return part("activations", tokens * hidden * each, formula);
    }
    let formula = format!("{sizes} x {} layers x {inside} B", model.layers);
    part("activations", tokens * hidden * model.layers * inside, formula)
}

/// The parts of the memory that answering needs on one GPU.
pub fn inference(model: &Model, how: &Inference) -> Vec<Part> {
    let Model { parameters, layers, hidden, heads, kv_heads, vocabulary } = *model;
    let weight = how.precision.bytes();
    let (tokens, each) = (how.batch * how.sequence, how.cache.bytes());
    let width = hidden / heads * kv_heads;
    let cache = 2.0 * layers * width * tokens * each;
    let cache_formula =
        format!("2 x {layers} layers x {} numbers x {} tokens x {each} B", count(width), count(tokens));
    let ahead = PREFILL_TOKENS.min(tokens);
    let activations = ahead * hidden * 34.0 / 2.0 + how.batch * vocabulary * 4.0;
    let activations_formula = format!(
        "{} tokens x {} hidden x 17 B + {} answers x {} words x 4 B",
        count(ahead),
        count(hidden),
        count(how.batch),
        count(vocabulary)
    );
    rest(vec![
        part("weights", parameters * weight, format!("{} x {weight} B", count(parameters))),
        part("cache", cache, cache_formula),
        part("activations", activations, activations_formula),
    ])
}

fn rest(mut parts: Vec<Part>) -> Vec<Part> {
    let used = total(&parts);
    let formula = format!("{FRAGMENTATION_PERCENT} % of the above");
    parts.push(part("fragmentation", used * FRAGMENTATION_PERCENT / 100.0, formula));
    parts.push(part("context", CONTEXT_BYTES, "driver, kernels, workspaces of libraries".into()));
    parts
}

fn part(name: &'static str, bytes: f64, formula: String) -> Part {
    Part { name, bytes, formula }
}

/// The sum of all parts, in bytes.
pub fn total(parts: &[Part]) -> f64 {
    parts.iter().map(|part| part.bytes).sum()
}

/// `8 G`, `4.1 k`.
fn count(number: f64) -> String {
    let (scaled, unit) = match number {
        n if n >= 1e9 => (n / 1e9, " G"),
        n if n >= 1e6 => (n / 1e6, " M"),
        n if n >= 1e4 => (n / 1e3, " k"),
        n => (n, ""),
    };
    let text = format!("{scaled:.1}");
    format!("{}{unit}", text.strip_suffix(".0").unwrap_or(&text))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GB: f64 = 1e9;

    fn bytes_of(parts: &[Part], name: &str) -> f64 {
        parts.iter().find(|part| part.name == name).map_or(0.0, |part| part.bytes)
    }

    #[test]
    fn a_model_of_a_size_has_about_that_many_parameters_in_its_layers() {
        for size in [1.2e8, 1.3e9, 8e9, 7e10] {
            let model = Model::of_size(size);
            let of_layers = 12.0 * model.layers * model.hidden * model.hidden;
            assert!((of_layers / size - 1.0).abs() < 0.08, "{size}: {model:?}");
        }
    }

    #[test]
    fn training_keeps_sixteen_bytes_of_a_parameter_with_adamw() {
        let how = Training {
            precision: Precision::Bf16,
            optimizer: Optimizer::Adamw,
            batch: 8.0,
            sequence: 4096.0,
            lora_rank: None,
            checkpointing: false,
        };
        let model = Model::of_size(8e9);
        let states = |how: &Training| {
            let parts = training(&model, how);
            ["weights", "adapters", "gradients", "optimizer"]
                .map(|name| bytes_of(&parts, name))
                .iter()
                .sum::<f64>()
        };
        assert_eq!(states(&how), 128.0 * GB);
        assert_eq!(states(&Training { precision: Precision::Fp32, ..how }), 128.0 * GB);
        let adapters = states(&Training { lora_rank: Some(16.0), ..how });
        assert!((16.0 * GB..17.0 * GB).contains(&adapters), "{adapters}");
        let kept = |how: &Training| bytes_of(&training(&model, how), "activations");
        assert!(kept(&how) > 10.0 * kept(&Training { checkpointing: true, ..how }));
    }

    #[test]
    fn the_cache_grows_with_tokens_and_shrinks_with_grouped_heads() {
        // Llama 3 8B: 32 layers, 8 of 32 heads for keys and values: 128 KiB a token in 16 bits.
        let model = Model { kv_heads: 8.0, layers: 32.0, hidden: 4096.0, heads: 32.0, ..Model::of_size(8e9) };
        let how =
            Inference { precision: Precision::Bf16, cache: Precision::Bf16, batch: 1.0, sequence: 8192.0 };
        assert_eq!(bytes_of(&inference(&model, &how), "cache"), 8192.0 * 131_072.0);
        let many = Inference { batch: 16.0, cache: Precision::Fp8, ..how };
        assert_eq!(bytes_of(&inference(&model, &many), "cache"), 16.0 * 8192.0 * 65_536.0);
        let grouped = bytes_of(&inference(&model, &how), "cache");
        assert_eq!(bytes_of(&inference(&Model { kv_heads: 32.0, ..model }, &how), "cache"), 4.0 * grouped);
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!([8e9, 4096.0, 32_768.0, 1.25e6].map(count), ["8 G", "4096", "32.8 k", "1.2 M"]);
    }
}
