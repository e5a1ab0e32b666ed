//! Changes that the server makes by itself, and the consent that it needs for them.
//!
//! A tenant's consent counts for its own programs. What a tenant above it, or the pool of a lease,
//! has said is a bound: of all these words the most cautious one is in force, so no tenant is
//! changed beyond what its own administrator has consented to.

use serde::{Deserialize, Serialize};

use crate::lease::LeaseId;
use crate::tenant::TenantPath;

/// How much the server may change by itself, from nothing to most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Mode {
    /// Programs are not looked at.
    Off,
    /// Recommendations are made, and people decide.
    #[default]
    Recommend,
    /// Runs of a known program that state no size get one that fits.
    NextRun,
    /// Running leases are resized as well.
    Live,
}

impl Mode {
    pub const ALL: [Mode; 4] = [Mode::Off, Mode::Recommend, Mode::NextRun, Mode::Live];

    /// Returns the name as it is written in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Off => "off",
            Mode::Recommend => "recommend",
            Mode::NextRun => "next-run",
            Mode::Live => "live",
        }
    }
}

impl std::str::FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Mode, String> {
        let found = Mode::ALL.into_iter().find(|mode| mode.name() == text);
        found.ok_or_else(|| format!("{text:?} is none of off, recommend, next-run and live"))
    }
}

/// The part of what was asked for that a lease keeps in any case, unless its tenant says another:
/// per cent.
pub const FLOOR_PERCENT_USUAL: u32 = 25;
/// Programs that are idle for less than this are not suspended, in milliseconds.
pub const IDLE_AFTER_MS_MIN: u64 = 10_000;
/// The longest time after which idle programs can be suspended, in milliseconds: 30 days.
pub const IDLE_AFTER_MS_MAX: u64 = 30 * 24 * 3_600_000;

/// What is wrong about a time after which idle programs are suspended, where it is to be 0 for
/// never, or within the bounds.
pub fn wrong_idle_after(ms: u64) -> Option<String> {
    let is_time = ms == 0 || (IDLE_AFTER_MS_MIN..=IDLE_AFTER_MS_MAX).contains(&ms);
    (!is_time).then(|| {
        format!("{IDLE_AFTER_MS_MIN} (ten seconds) to {IDLE_AFTER_MS_MAX} (30 days), or 0, not {ms}")
    })
}

/// What a tenant has consented to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Consent {
    pub tenant: TenantPath,
    pub mode: Mode,
    /// The share that a lease keeps in any case, in per cent of what it asked for.
    pub floor_percent: u32,
    /// Programs of the tenant that are idle for this time are suspended; never without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_after_ms: Option<u64>,
    pub set_at_ms: u64,
    /// The token that it was set with, and its name.
    pub set_by: String,
}

impl Consent {
    /// What holds for a tenant that has said nothing.
    pub fn unsaid(tenant: TenantPath) -> Consent {
        Consent {
            tenant,
            mode: Mode::default(),
            floor_percent: FLOOR_PERCENT_USUAL,
            idle_after_ms: None,
            set_at_ms: 0,
            set_by: String::new(),
        }
    }

    /// Whether it lets the server do something that `before` does not.
    pub fn allows_more_than(&self, before: &Consent) -> bool {
        let idle_after_ms = |consent: &Consent| consent.idle_after_ms.unwrap_or(u64::MAX);
        self.mode > before.mode
            || self.floor_percent < before.floor_percent
            || idle_after_ms(self) < idle_after_ms(before)
    }
}

/// A consent to be given or taken back. What is not named stays.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NewConsent {
    pub tenant: TenantPath,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mode: Option<Mode>,
    /// 5 to 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub floor_percent: Option<u32>,
    /// 10,000 or more; 0 for never.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_after_ms: Option<u64>,
}

/// A tenant's consent, and what is in force for its programs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TenantAutonomy {
    pub tenant: TenantPath,
    /// What its administrator has said, if that is so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub consent: Option<Consent>,
    /// What is in force, apart from what pools say.
    pub mode: Mode,
    /// Whose word that is.
    pub because: String,
}

/// A program by the name of its leases.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ProgramName {
    pub tenant: TenantPath,
    pub program: String,
}

/// A program that is left alone, since a person has undone what the server changed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LeftAlone {
    pub tenant: TenantPath,
    pub program: String,
    pub set_at_ms: u64,
    /// The token that it was said with, and its name.
    pub set_by: String,
}

/// What the server gives the next runs of a program that state no size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ProgramSize {
    pub tenant: TenantPath,
    pub program: String,
    /// What it asked for of each GPU, in millionths and bytes.
    pub asked_share_ppm: u32,
    pub asked_memory: u64,
    /// What its next runs get.
    pub share_ppm: u32,
    pub memory: u64,
    pub set_at_ms: u64,
    pub why: String,
}

/// Who has consented to what, and what came of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Autonomy {
    pub tenants: Vec<TenantAutonomy>,
    pub programs: Vec<ProgramSize>,
    pub left_alone: Vec<LeftAlone>,
}

/// What was undone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Undone {
    /// The program is left alone from now on.
    pub left_alone: LeftAlone,
    /// The leases that get back what they asked for.
    pub leases: Vec<LeaseId>,
    /// Those that get it later: until then it is tried again and again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub later: Vec<UndoneLater>,
}

/// A lease that cannot get back what it asked for now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct UndoneLater {
    pub lease: LeaseId,
    pub reason: String,
}

/// What kind of change the server made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum AutomaticKind {
    /// It began with another size than was asked for.
    NextRun,
    /// It was resized while it ran.
    Live,
}

/// The size of a lease that the server has changed by itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct AutomaticSize {
    pub kind: AutomaticKind,
    /// What was asked for of each GPU, in millionths and bytes; 0 bytes for the share's part.
    pub asked_share_ppm: u32,
    pub asked_memory: u64,
    pub at_ms: u64,
    pub why: String,
}

/// What comes of it that the programs of a lease do nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Idle {
    /// They have made no CUDA calls and used no GPU time since then.
    pub since_ms: u64,
    /// It is suspended then, unless they do something before.
    pub suspend_at_ms: u64,
    /// It was suspended for that, and comes back at the next CUDA call.
    pub suspended: bool,
    /// It is suspended, and a call waits.
    pub wants: bool,
    /// Why it is not suspended, though it is idle.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stays: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_ordered_and_have_one_name() {
        assert!(Mode::ALL.windows(2).all(|pair| pair[0] < pair[1]));
        for mode in Mode::ALL {
            assert_eq!(mode.name().parse(), Ok(mode));
            assert_eq!(serde_json::json!(mode), mode.name());
        }
        assert!("auto".parse::<Mode>().unwrap_err().contains("next-run"));
    }

    #[test]
    fn a_consent_that_lets_the_server_do_more_is_told_from_one_that_does_not() {
        let unsaid = Consent::unsaid("acme".parse().unwrap());
        assert!(!unsaid.allows_more_than(&unsaid));
        for more in [
            Consent { mode: Mode::NextRun, ..unsaid.clone() },
            Consent { floor_percent: 10, ..unsaid.clone() },
            Consent { idle_after_ms: Some(60_000), ..unsaid.clone() },
        ] {
            assert!(more.allows_more_than(&unsaid) && !unsaid.allows_more_than(&more), "{more:?}");
        }
    }
}
