//! The client's stream and the frames that come out of it.

use std::error::Error;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::{Duration, Instant};

use sluice_transport::{Rings, Side, Stream};
use sluice_wire::control::{Control, SessionOpen, SharedMemory};
use sluice_wire::migration::Upstream;
use sluice_wire::pack::unpack;
use sluice_wire::sequences::Expander;
use sluice_wire::spin::{Spin, Wait};
use sluice_wire::{Command, FrameDecoder, Header, Kind, Op, Received, WireError, commands, decode};

use crate::connection::client::{Client, Connection, frame_of, write_all};
use crate::connection::migration::pause::{Pause, Standing};
use crate::connection::serve::OpenError;
use crate::copies::bulk::{Arriving, Bulk, PIECE};
use crate::counters::CounterPage;
use crate::outbox::Outbox;
use crate::pipeline::{Job, Pipeline};
use crate::process::ending;

/// Bytes that are read from the client at a time, unless a frame is longer.
const READ_SIZE: usize = 64 << 10;
/// Bytes that are read after a large frame: what comes next is probably another, of which no more
/// than its beginning is wanted here.
const READ_SIZE_AFTER_BULK: usize = 4 << 10;

/// The system is asked for the round-trip time this often at most.
const ROUND_TRIP_EVERY: Duration = Duration::from_secs(1);

/// The bytes: over one connection, and then the next.
struct Line {
    client: Arc<Client>,
    connection: Connection,
    outbox: Arc<Outbox>,
    spin: Spin,
    counters: Arc<CounterPage>,
    /// When the system was asked for the round-trip time last.
    asked: Option<Instant>,
}

pub(crate) struct Reader {
    line: Line,
    decoder: FrameDecoder,
    /// Where the client may tell commands as what changed.
    expander: Option<Expander>,
    /// Of a frame that tells commands some may be left.
    is_expanding: bool,
    /// Bytes of commands that came packed.
    unpacked: u64,
    after_bulk: bool,
    /// That this process may use.
    cores: usize,
    pause: Arc<Pause>,
}

impl Line {
    /// Counts what `read` gets. Where `spins` is set, it may look for bytes before it sleeps.
    fn read(
        &mut self,
        spins: bool,
        mut read: impl FnMut(&Stream, Wait) -> io::Result<usize>,
    ) -> io::Result<usize> {
        let stream = &self.connection.stream;
        let got = match spins {
            true => self.spin.read(|wait| read(stream, wait))?,
            false => read(stream, Wait::Asleep)?,
        };
        if got == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        if !self.client.received(&self.connection, got) {
            return Err(io::ErrorKind::ConnectionAborted.into());
        }
        self.counters.bytes_in.fetch_add(got as u64, Relaxed);
        self.note_round_trip();
        Ok(got)
    }

    /// Asks the system for the round-trip time now and then, for the node's metrics.
    fn note_round_trip(&mut self) {
        if self.asked.is_some_and(|asked| asked.elapsed() < ROUND_TRIP_EVERY) {
            return;
        }
        self.asked = Some(Instant::now());
        let microseconds = self.connection.stream.round_trip().map_or(0, |took| took.as_micros() as u64);
        self.counters.round_trip_us.store(microseconds, Relaxed);
    }

    /// As [`Line::read`], also after a cut.
    fn read_on(&mut self, spins: bool, mut read: impl FnMut(&Stream, Wait) -> io::Result<usize>) -> usize {
        loop {
            match self.read(spins, &mut read) {
                Ok(got) => return got,
                Err(_) => self.next_connection(),
            }
        }
    }

    /// Fills `into`, which is the rest of a frame or less.
    fn read_whole(&mut self, into: &mut [u8]) {
        let mut filled = 0;
        while filled < into.len() {
            let space = &mut into[filled..];
            filled += self.read_on(false, |stream, wait| stream.read(space, wait));
            self.acknowledge();
        }
    }

    /// Says how much has come, if the client should know.
    fn acknowledge(&mut self) {
        if self.outbox.acknowledge().is_err() {
            self.next_connection();
        }
    }

    /// This connection is of no more use: waits for the next.
    fn next_connection(&mut self) {
        self.client.parted(&self.connection);
        self.connection = self.client.connection();
    }

    /// Waits for the next connection, unless the reader is to stop meanwhile: then the connection
    /// stays the old one.
    fn next_connection_unless(&mut self, pause: &Pause) {
        self.client.parted(&self.connection);
        if let Some(next) = self.client.connection_unless(|| pause.is_wanted()) {
            self.connection = next;
        }
    }
}

impl Reader {
    pub(crate) fn new(client: Arc<Client>, outbox: Arc<Outbox>, counters: Arc<CounterPage>) -> Reader {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let connection = client.connection();
        let line = Line { client, connection, outbox, spin: Spin::new(cores), counters, asked: None };
        let decoder = FrameDecoder::new();
        Reader {
            line,
            decoder,
            expander: None,
            is_expanding: false,
            unpacked: 0,
            after_bulk: false,
            cores,
            pause: Arc::default(),
        }
    }

    /// What stops it.
    pub(crate) fn pause(&self) -> &Arc<Pause> {
        &self.pause
    }

    /// Continues where another worker's reader stood.
    pub(crate) fn restore(&mut self, upstream: &Upstream) -> Result<(), WireError> {
        self.decoder.push(&upstream.partial);
        self.expander = upstream.expander.as_deref().map(Expander::restored).transpose()?;
        self.unpacked = upstream.unpacked;
        Ok(())
    }

    fn standing(&self) -> Standing {
        Standing {
            partial: self.decoder.held().to_vec(),
            expander: self.expander.as_ref().map(Expander::saved),
            unpacked: self.unpacked,
        }
    }

    pub(crate) fn client(&self) -> &Arc<Client> {
        &self.line.client
    }

    /// From now on the client may tell commands as what changed since earlier ones.
    pub(crate) fn expand(&mut self) {
        self.expander = Some(Expander::new());
    }

    /// The client's offers, before which it may ask for shared memory.
    pub(crate) fn session_open(&mut self) -> Result<SessionOpen, OpenError> {
        let mut control = self.next_control()?;
        if let Control::ShareMemory(_) = control {
            self.share_memory()?;
            control = self.next_control()?;
        }
        match control {
            Control::SessionOpen(open) => Ok(open),
            _ => Err(OpenError::Unexpected),
        }
    }

    fn share_memory(&mut self) -> Result<(), OpenError> {
        // Without memory to share the socket has to do.
        let stream = Arc::clone(&self.line.connection.stream);
        let made = stream.is_unix().then(Rings::create).and_then(Result::ok);
        let answer = frame_of(SharedMemory { offered: made.is_some() })?;
        let Some((memory, file)) = made else { return Ok(write_all(&stream, &answer)?) };
        let sent = stream.write_with_descriptor(&answer, file.as_fd())?;
        write_all(&stream, &answer[sent..])?;
        match self.next_control()? {
            Control::SharedMemoryTaken(answer) => {
                if answer.taken {
                    stream.share(memory, Side::Worker, self.cores);
                }
                Ok(())
            }
            _ => Err(OpenError::Unexpected),
        }
    }

    fn next_control(&mut self) -> Result<Control, OpenError> {
        loop {
            if let Some(frame) = self.decoder.next_frame()? {
                return match frame.header.kind {
                    Kind::Control => Ok(Control::decode(frame.header.op, frame.payload)?),
                    _ => Err(OpenError::Unexpected),
                };
            }
            let space = self.decoder.space(READ_SIZE);
            let got = self.line.read_on(true, |stream, wait| stream.read(space, wait));
            self.decoder.received(got);
        }
    }

    /// Hands the next command on, or has executed it; ends the process when there is none.
    pub(crate) fn next(&mut self, pipeline: &Arc<Pipeline>) {
        let job = loop {
            match self.next_job(pipeline) {
                Ok(Next::Job(job)) => break job,
                Ok(Next::Executed) => return,
                Ok(Next::NotYet) => {}
                Err(error) => ending::failed(&format!("the client sent nonsense: {error}")),
            }
        };
        if Op(job.header.op) != commands::cuCtxSynchronize::OP {
            pipeline.session.is_written.store(true, SeqCst);
        }
        pipeline.accept(job);
    }

    fn next_job(&mut self, pipeline: &Pipeline) -> Result<Next, Box<dyn Error>> {
        if self.is_expanding {
            return Ok(self.next_recognised()?);
        }
        if self.pause.is_wanted() {
            self.pause.stand(|| self.standing());
        }
        if let Some(frame) = self.decoder.next_frame()? {
            self.after_bulk = false;
            return match frame.header.kind {
                Kind::Command => Ok(Next::Job(Job { header: frame.header, payload: frame.payload.to_vec() })),
                Kind::Received => {
                    let received = decode::<Received>(frame.payload)?;
                    self.line.outbox.acknowledged(received)?;
                    Ok(Next::NotYet)
                }
                Kind::Commands if let Some(expander) = &mut self.expander => {
                    expander.begin(&frame);
                    self.is_expanding = true;
                    Ok(Next::NotYet)
                }
                Kind::Packed => match unpack(&frame)? {
                    (header @ Header { kind: Kind::Command, .. }, payload) => {
                        self.unpacked += payload.len() as u64;
                        self.tell_expanded();
                        Ok(Next::Job(Job { header, payload }))
                    }
                    (header, _) => Err(WireError::FrameKind(header.kind as u8).into()),
                },
                kind => Err(WireError::FrameKind(kind as u8).into()),
            };
        }
        if let Some(begun) = self.decoder.begun()?
            && let Some(bulk) = Bulk::of(&begun, &pipeline.buffers)
        {
            self.decoder.take_begun();
            self.after_bulk = true;
            return Ok(self.read_bulk(bulk, pipeline));
        }
        self.fill_decoder()?;
        Ok(Next::NotYet)
    }

    /// The next command of a frame that tells several.
    fn next_recognised(&mut self) -> Result<Next, WireError> {
        let Some(expander) = &mut self.expander else { return Ok(Next::NotYet) };
        if let Some(frame) = expander.next_command()? {
            return Ok(Next::Job(Job { header: frame.header, payload: frame.payload.to_vec() }));
        }
        self.is_expanding = false;
        self.tell_expanded();
        Ok(Next::NotYet)
    }

    /// The client's flow control counts the bytes that it has sent delta encoded, of which these
    /// were the last for now, as far as is known here.
    fn tell_expanded(&mut self) {
        let recognised = self.expander.as_ref().map_or(0, Expander::told);
        self.line.outbox.expanded(recognised + self.unpacked);
        self.line.acknowledge();
    }

    /// Waits for more bytes.
    fn fill_decoder(&mut self) -> Result<(), WireError> {
        let is_between_frames = self.decoder.is_between_frames();
        let room = match is_between_frames && self.after_bulk {
            true => READ_SIZE_AFTER_BULK,
            false => self.decoder.missing()?.max(READ_SIZE),
        };
        let space = self.decoder.space(room);
        if !self.pause.waits(&self.line.connection) {
            return Ok(());
        }
        // The rest of a frame that has begun is in flight, in as many pieces as it takes.
        let got = self.line.read(is_between_frames, |stream, wait| stream.read(space, wait));
        self.pause.has_waited();
        match got {
            Ok(got) => {
                self.decoder.received(got);
                self.line.acknowledge();
            }
            Err(_) if self.pause.is_wanted() => {}
            Err(_) => self.line.next_connection_unless(&self.pause),
        }
        Ok(())
    }

    /// Reads the rest of a large command. A copy to the device is executed as soon as nothing
    /// stands before it.
    fn read_bulk(&mut self, mut bulk: Bulk, pipeline: &Pipeline) -> Next {
        pipeline.session.is_written.store(true, SeqCst);
        let mut copy = Arriving::of(&bulk);
        if copy.is_some() {
            pipeline.wait_a_moment_for_idleness(bulk.header.device);
        }
        while !bulk.is_whole() {
            if let Some(copy) = copy.take_if(|_| pipeline.is_idle(bulk.header.device)) {
                match self.copy_through(bulk, copy, pipeline) {
                    Some(rest) => bulk = rest,
                    None => return Next::Executed,
                }
                continue;
            }
            let piece = bulk.next_piece();
            bulk.filled += self.line.read_on(false, |stream, wait| stream.read(piece, wait));
            self.line.acknowledge();
        }
        Next::Job(Job { header: bulk.header, payload: bulk.payload })
    }

    /// Gives the driver what has come of a copy, and the rest as it comes. Returns what is left
    /// when the turn is lost.
    fn copy_through(&mut self, bulk: Bulk, mut copy: Arriving, pipeline: &Pipeline) -> Option<Bulk> {
        let session = &pipeline.session;
        let Some(submission) = copy.enter(session) else { return Some(bulk) };
        let come = Arriving::data_of(&bulk);
        // SAFETY: pointer and length are of a slice.
        unsafe { copy.copy(session, submission, come.as_ptr(), come.len()) };
        let mut buffer = bulk.payload;
        while copy.left > 0 {
            let (mut refused, left) = (None, copy.left);
            let mut take = |from: *const u8, count: usize| match copy.enter(session) {
                // SAFETY: this number of bytes can be read there while this runs.
                Some(submission) => unsafe { copy.copy(session, submission, from, count) },
                // SAFETY: as above.
                None => refused = Some(unsafe { std::slice::from_raw_parts(from, count) }.to_vec()),
            };
            if self.line.connection.stream.is_shared() {
                let counts = (left.min(PIECE), left);
                self.line.read_on(true, |stream, wait| stream.read_in_place(counts, wait, &mut take));
            } else {
                let room = left.min(PIECE).min(buffer.len());
                self.line.read_whole(&mut buffer[..room]);
                take(buffer.as_ptr(), room);
            }
            if let Some(read) = refused {
                return Some(copy.rest(buffer, &read));
            }
        }
        pipeline.buffers.give(buffer);
        None
    }
}

/// What has come.
enum Next {
    Job(Job),
    /// A command that has been executed already.
    Executed,
    /// No whole command.
    NotYet,
}
