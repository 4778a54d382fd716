//! The trace points.

owlet::event_enum! {
    /// What a request asks for.
    pub enum Op: u8 {
        /// Read a value.
        Get = 0,
        /// Write a value.
        Set = 1,
        /// Forget a value.
        Del = 2,
    }
}

owlet::event_enum! {
    /// How a request ended.
    #[derive(PartialEq, Eq)]
    pub enum Status: u8 {
        /// Done.
        Ok = 0,
        /// No such key.
        Missing = 1,
        /// Not a request.
        Bad = 2,
    }
}

owlet::tracepoint! {
    /// What the key-value server does.
    pub mod kv {
        /// A client has connected.
        #[level(Info)]
        accept(connection: u64, port: u16);
        /// A request has been read.
        #[level(Debug)]
        request(connection: u64, op: crate::points::Op, key: &str);
        /// The store has looked for a key: in which shard, and how many steps it took.
        #[level(Trace)]
        lookup(key: &str, shard: u8, steps: u32, found: bool);
        /// A reply is about to be sent.
        #[level(Debug)]
        reply(connection: u64, status: crate::points::Status, bytes: u32, took_ns: u64);
        /// A shard was full and has forgotten its oldest key.
        #[level(Warn)]
        evict(shard: u8, key: &str, bytes: u32);
        /// A client has left.
        #[level(Info)]
        close(connection: u64, requests: u64);
    }
}
