//! Tiers of pools as declarations have them: a name, or a name with a promise.

use serde::Deserialize;

use super::read::{decimal, either};
use super::{TextError, WrittenError};
use crate::GPU_PPM;
use crate::pool::{ATTAINED_PPM_USUAL, PoolTier, Promise, Tier, WAIT_US_MAX};

/// A tier that a pool serves, and what it promises the leases of that tier.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WrittenTier {
    name: Tier,
    /// A lease that is within its share waits for the GPU no longer than this, such as 20ms: up to
    /// a minute.
    #[cfg_attr(
        feature = "openapi",
        schema(pattern = "^[0-9]{1,9}(\\.[0-9]{1,3})? ?(us|ms|s)$", examples("20ms"))
    )]
    wait: Option<String>,
    /// The wait in microseconds.
    wait_us: Option<u64>,
    /// The least part of the waits that are no longer; 99 % unless said.
    #[cfg_attr(feature = "openapi", schema(pattern = "^[0-9]{1,3}(\\.[0-9]{1,4})? ?%?$", examples("99%")))]
    attained: Option<String>,
    /// The least part in millionths.
    attained_ppm: Option<u32>,
    /// The part of what the lease's share costs that its bill credits for a day on which the
    /// promise was not kept; none unless said.
    #[cfg_attr(feature = "openapi", schema(pattern = "^[0-9]{1,3}(\\.[0-9]{1,4})? ?%?$", examples("10%")))]
    credit: Option<String>,
    /// The credited part in millionths.
    credit_ppm: Option<u32>,
    /// The most that each of its leases gets of a GPU, also of an idle GPU; a lease
    /// whose share is larger gets its share. No limit unless said.
    #[cfg_attr(feature = "openapi", schema(pattern = "^[0-9]{1,3}(\\.[0-9]{1,4})? ?%?$", examples("50%")))]
    limit: Option<String>,
    /// The limit in millionths.
    limit_ppm: Option<u32>,
}

/// A tier, or a tier with a promise.
#[cfg(feature = "openapi")]
#[derive(utoipa::ToSchema)]
#[serde(untagged)]
#[allow(dead_code, reason = "it declares what `PoolTier` reads and writes")]
pub(crate) enum WrittenPoolTier {
    Name(Tier),
    Promised(WrittenTier),
}

impl TryFrom<WrittenTier> for PoolTier {
    type Error = WrittenError;

    fn try_from(written: WrittenTier) -> Result<PoolTier, WrittenError> {
        let WrittenTier { name, wait, wait_us, attained, attained_ppm, credit, credit_ppm, limit, limit_ppm } =
            written;
        let part = |written, (exact_field, exact): (_, Option<u32>)| {
            either(written, (exact_field, exact.map(u64::from)), percent_ppm)
        };
        let wait_us = either(("wait", wait), ("wait_us", wait_us), wait_us_of)?;
        let attained_ppm = part(("attained", attained), ("attained_ppm", attained_ppm))?;
        let credit_ppm = part(("credit", credit), ("credit_ppm", credit_ppm))?;
        let limit_ppm = part(("limit", limit), ("limit_ppm", limit_ppm))?.map(limit_of).transpose()?;
        let Some(wait_us) = wait_us else {
            let said = [("attained", attained_ppm), ("credit", credit_ppm)];
            let alone = said.into_iter().find_map(|(with, ppm)| ppm.map(|_| with));
            return match alone {
                Some(with) => Err(WrittenError::Alone { field: "wait", with }),
                None => Ok(PoolTier { limit_ppm, ..name.into() }),
            };
        };
        if !(1..=WAIT_US_MAX).contains(&wait_us) {
            return Err(WrittenError::Range { field: "wait", what: "more than nothing, and up to a minute" });
        }
        let whole = |field, ppm: u64| {
            let ppm = u32::try_from(ppm).ok().filter(|&ppm| ppm <= GPU_PPM);
            ppm.ok_or(WrittenError::Range { field, what: "at most 100 %" })
        };
        let attained_ppm = whole("attained", attained_ppm.unwrap_or(ATTAINED_PPM_USUAL.into()))?;
        if attained_ppm == 0 {
            return Err(WrittenError::Range { field: "attained", what: "more than 0 %" });
        }
        let credit_ppm = whole("credit", credit_ppm.unwrap_or(0))?;
        let promise = Some(Promise { wait_us, attained_ppm, credit_ppm });
        Ok(PoolTier { tier: name, promise, limit_ppm })
    }
}

fn limit_of(ppm: u64) -> Result<u32, WrittenError> {
    let ppm = u32::try_from(ppm).ok().filter(|ppm| (1..=GPU_PPM).contains(ppm));
    ppm.ok_or(WrittenError::Range { field: "limit", what: "more than 0 %, and at most 100 %" })
}

/// `20ms`, in microseconds.
fn wait_us_of(text: &str) -> Result<u64, TextError> {
    let units = [("us", 1), ("ms", 1000), ("s", 1_000_000)];
    let split = units.iter().find_map(|&(unit, us)| {
        let number = text.strip_suffix(unit)?.trim_end();
        number.ends_with(|c: char| c.is_ascii_digit()).then_some((number, us))
    });
    let (number, unit_us) = split.ok_or(TextError::Wait)?;
    let thousandths = decimal(number, 3).map_err(|_| TextError::Wait)?;
    let product = thousandths.checked_mul(unit_us).filter(|product| product % 1000 == 0);
    product.map(|product| product / 1000).ok_or(TextError::Wait)
}

/// `99.5%` or `99.5`, in millionths.
fn percent_ppm(text: &str) -> Result<u64, TextError> {
    let number = text.strip_suffix('%').map_or(text, str::trim_end);
    decimal(number, 4).map_err(|_| TextError::Percent)
}
