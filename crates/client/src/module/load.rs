//! Loading images.
//!
//! An image is named by its content hash, and travels only if the node does not have it. With the
//! answer to a load come the function of a module that has one, or the names of a few: these are
//! had without waiting ([`pending`](crate::module::pending)). What came once is known from then on
//! ([`facts`](crate::session::facts)), and the load of such an image is asked for and not waited
//! for: its answer is taken when something of the module is wanted that is not known.

use std::borrow::Cow;
use std::sync::Arc;

use sluice_cuda::*;
use sluice_image::pointer::Located;
use sluice_wire::{BULK_SIZE_MAX, Command, Encode, ImageFacts, ImageHash, ModuleId, commands, decode};

use crate::abi::ids::Kind;
use crate::context;
use crate::device::Device;
use crate::link::command_id::CommandId;
use crate::link::inbox::Answer;
use crate::module::image::{self, Jit};
use crate::module::{self, Library, Module};
use crate::session::facts::{Facts, Subject};
use crate::session::issue::Issue;
use crate::session::{self, Session};

/// An image of no more bytes goes with its load, where it is not known whether the node has it: it
/// takes less time than asking.
const SMALL: usize = 64 << 10;

/// To whom a module belongs.
#[derive(Clone, Copy)]
pub(crate) enum Owner {
    /// To the calling thread's context: a module proper.
    Context,
    /// To no context: a library, which programs load before they have one.
    Process,
}

/// The load of an image on a device.
struct Load<'a> {
    handle: u64,
    facts: &'a Facts,
    of: &'a Subject,
}

impl Session {
    /// Loads an image and gives it a handle.
    pub(crate) fn load(&self, owner: Owner, image: &Located<'_>, jit: &mut Jit) -> Result<u64, CUresult> {
        let (context, device) = match owner {
            Owner::Context => {
                let context = context::current()?;
                (context.owner, context.device)
            }
            Owner::Process => (CUcontext::NULL, context::device()),
        };
        let at = self.device(device)?;
        let (hash, code) = image_for(at, image, jit)?;
        let of = Subject::new(hash, &jit.numbers);
        let handle = context::mint(Kind::Module);
        let due = self.load_at(&Load { handle, facts: &at.facts, of: &of }, Some(&code), jit)?;
        let library = context
            .is_null()
            .then(|| Library::new(device, self.provide_everywhere(hash, image), jit.numbers.clone()));
        module::insert(handle, Module::new(context, (Arc::clone(&at.facts), of), due, library));
        Ok(handle)
    }

    /// A library's module on the calling thread's device, which is `device`. Any other module is
    /// where it is.
    pub(crate) fn library_on(&self, module: u64, device: CUdevice) -> Result<u64, CUresult> {
        let object = module::get(module)?;
        let Some(library) = object.library.as_ref().filter(|library| library.home() != device) else {
            return Ok(module);
        };
        let mut elsewhere = module::locked(&library.elsewhere);
        if let Some(&known) = elsewhere.get(&device) {
            return Ok(known);
        }
        let image = library.images.get(usize::from(self.index)).copied().flatten();
        let handle = context::mint(Kind::Module);
        let image = image.ok_or(CUresult::NO_BINARY_FOR_GPU)?;
        let mut jit = Jit::none();
        jit.numbers.clone_from(&library.options);
        let (at, of) = (self.device(device)?, Subject::new(image, &jit.numbers));
        let due = self.load_at(&Load { handle, facts: &at.facts, of: &of }, None, &mut jit)?;
        // What is loaded here belongs to the library, and goes with it.
        let images = library.images.clone();
        let library = Library::new(device, images, jit.numbers);
        let module = Module::new(CUcontext::NULL, (Arc::clone(&at.facts), of), due, Some(library));
        module::insert(handle, module);
        elsewhere.insert(device, handle);
        Ok(handle)
    }

    /// What each session's devices have of a library. Later its image is the program's again, so
    /// every node gets it now.
    fn provide_everywhere(&self, here: ImageHash, image: &Located<'_>) -> Vec<Option<ImageHash>> {
        let of = |session: &Session| {
            if session.index == self.index {
                return Some(here);
            }
            let device = session.devices.first()?;
            let (hash, code) = image_for(device, image, &mut Jit::none()).ok()?;
            session.provide(&device.facts, hash, &code).ok().map(|()| hash)
        };
        session::all().map_or(Vec::new(), |all| all.list.iter().map(of).collect())
    }

    /// Makes sure that the node has an image.
    fn provide(&self, facts: &Facts, image: ImageHash, bytes: &[u8]) -> Result<(), CUresult> {
        // A log holds the image, for nodes that have not seen it.
        if !self.link.is_recorded() && self.has_image(facts, image)? {
            return Ok(());
        }
        self.send_image(image, bytes)
    }

    /// Whether the node has an image. The first question is about all those of which earlier
    /// processes knew something.
    fn has_image(&self, facts: &Facts, image: ImageHash) -> Result<bool, CUresult> {
        if let Some(is_there) = facts.is_there(image) {
            return Ok(is_there);
        }
        let images = facts.doubts(image);
        let known = self.call(&commands::ImagesQuery { images: images.clone() }, |answer| answer.known)?;
        images.into_iter().zip(known).for_each(|(image, is_there)| facts.note(image, is_there));
        Ok(facts.is_there(image).unwrap_or(false))
    }

    /// Sends an image that is small: it is there then.
    fn sends_small(&self, image: ImageHash, bytes: Option<&[u8]>) -> Result<bool, CUresult> {
        let small = bytes.filter(|bytes| bytes.len() <= SMALL);
        small.map_or(Ok(false), |bytes| self.send_image(image, bytes).map(|()| true))
    }

    fn send_image(&self, image: ImageHash, bytes: &[u8]) -> Result<(), CUresult> {
        let total = bytes.len() as u64;
        for (i, piece) in bytes.chunks(BULK_SIZE_MAX).enumerate() {
            let offset = (i * BULK_SIZE_MAX) as u64;
            self.queue_quietly(&commands::ImageData { image, offset, total, bytes: piece })?;
        }
        Ok(())
    }

    /// Loads an image on a device, which is sent if the node does not have it. Without its bytes
    /// the node was given it before. Where the answer was not waited for, its place is returned.
    fn load_at(
        &self,
        load: &Load<'_>,
        bytes: Option<&[u8]>,
        jit: &mut Jit,
    ) -> Result<Option<CommandId>, CUresult> {
        let image = load.of.image;
        // A log holds the image, for nodes that have not seen it, and all answers.
        if self.link.is_recorded() {
            bytes.map_or(Ok(()), |bytes| self.send_image(image, bytes))?;
        } else if let Some(log) = load.facts.log(load.of)
            && (self.has_image(load.facts, image)? || self.sends_small(image, bytes)?)
        {
            let place = self.load_ahead(load, jit)?;
            jit.write(&log, true);
            return Ok(Some(place));
        } else if load.facts.is_there(image) != Some(true) {
            self.sends_small(image, bytes)?;
        }
        let mut is_known = self.load_now(load, jit)?;
        if let Some(bytes) = bytes.filter(|_| !is_known) {
            self.send_image(image, bytes)?;
            is_known = self.load_now(load, jit)?;
        }
        if is_known { Ok(None) } else { Err(CUresult::INVALID_IMAGE) }
    }

    /// Asks for a load on which other commands build before its answer is here.
    fn load_ahead(&self, load: &Load<'_>, jit: &Jit) -> Result<CommandId, CUresult> {
        let (module, image, options) = (ModuleId(load.handle), load.of.image, jit.numbers.clone());
        let command = commands::ModuleLoadAhead { module, image, options };
        self.link.ask(self.place(), commands::ModuleLoadAhead::OP, |out| command.encode(out))
    }

    /// False if the node does not have the image.
    fn load_now(&self, load: &Load<'_>, jit: &mut Jit) -> Result<bool, CUresult> {
        let (module, image, options) = (ModuleId(load.handle), load.of.image, jit.numbers.clone());
        let command = commands::cuModuleLoadDataEx { module, image, options };
        let op = commands::cuModuleLoadDataEx::OP;
        let answer = self.link.call(self.place(), op, |out| command.encode(out))?;
        heard(&answer, load.facts, load.of, jit)
    }

    /// Looks at the answer to a load that was not waited for, if it has come, and does not wait for
    /// it any more.
    pub(crate) fn forgo_load(&self, module: &Module, place: CommandId) {
        let (facts, of) = module.facts();
        if let Some(answer) = self.link.forgo(place) {
            let _ = heard(&answer, facts, of, &mut Jit::none());
        }
    }

    /// Takes the answer to a load that was not waited for.
    pub(crate) fn settle_load(&self, module: &Module, place: CommandId) -> Result<(), CUresult> {
        let (facts, of) = module.facts();
        let answer = self.link.take(place)?;
        let is_known = heard(&answer, facts, of, &mut Jit::none())?;
        if is_known { Ok(()) } else { Err(CUresult::INVALID_IMAGE) }
    }
}

/// Keeps what the node has answered to a load of either kind; false if it does not have the image.
/// A refused load has a log too: it is the compiler's, and what the program wants to read.
fn heard(answer: &Answer, facts: &Facts, of: &Subject, jit: &mut Jit) -> Result<bool, CUresult> {
    let reply = decode::<commands::cuModuleLoadDataExReply<'_>>(&answer.payload);
    let said = reply.as_ref().map_or(&[][..], |reply| reply.log);
    answer.result.ok().inspect_err(|error| {
        let refusal = format!("the node's driver refuses the image: {error}");
        jit.write(if said.is_empty() { refusal.as_bytes() } else { said }, false);
    })?;
    jit.write(said, true);
    let reply = reply.map_err(|_| CUresult::UNKNOWN)?;
    // That it was there does not say that it stays: of that the node makes a promise when it is
    // asked.
    if !reply.known {
        facts.note(of.image, false);
    }
    if reply.known {
        facts.learn(ImageFacts {
            log: reply.log.to_vec(),
            functions: reply.functions,
            names: reply.names,
            ..of.facts()
        });
    }
    Ok(reply.known)
}

/// What of an image a device runs, and its hash.
fn image_for<'a>(
    device: &Device,
    image: &Located<'a>,
    jit: &mut Jit,
) -> Result<(ImageHash, Cow<'a, [u8]>), CUresult> {
    let code = image::for_device(image, &device.snapshot, jit)?;
    Ok((ImageHash(sluice_image::ImageHash::of(&code).0), code))
}
