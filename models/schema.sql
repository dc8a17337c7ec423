CREATE TABLE "agent_events" (
    "id" INTEGER NOT NULL PRIMARY KEY,
    "task_id" TEXT NOT NULL,
    "seq" INTEGER NOT NULL,
    "event_type" TEXT NOT NULL,
    "payload_json" TEXT NOT NULL,
    "is_structural" INTEGER NOT NULL DEFAULT 0,
    "timestamp" INTEGER NOT NULL,
    FOREIGN KEY (task_id) REFERENCES agent_tasks (id) ON DELETE RESTRICT
);

CREATE UNIQUE INDEX "agent_events_task_id_seq" ON "agent_events" ("task_id", "seq");

CREATE INDEX "agent_events_timestamp" ON "agent_events" ("timestamp");

CREATE TABLE "agent_tasks" (
    "id" TEXT NOT NULL PRIMARY KEY,
    "parent_session_id" TEXT NOT NULL,
    "agent_id" TEXT NOT NULL,
    "task_prompt" TEXT NOT NULL,
    "status" TEXT NOT NULL,
    "risk_level" TEXT NOT NULL,
    "lane" TEXT NOT NULL DEFAULT 'subagent',
    "checkpoint_snapshot_path" TEXT,
    "last_tool_call_id" TEXT,
    "recursion_depth" INTEGER NOT NULL DEFAULT 0,
    "parent_task_id" TEXT,
    "created_at" INTEGER NOT NULL,
    "updated_at" INTEGER NOT NULL,
    "started_at" INTEGER,
    "completed_at" INTEGER,
    "metadata_json" TEXT,
    "attempt" INTEGER NOT NULL DEFAULT 0,
    "losses" INTEGER NOT NULL DEFAULT 0,
    "worker_id" TEXT,
    "reason" TEXT,
    "hold" TEXT,
    "priority" INTEGER NOT NULL DEFAULT 0,
    "rank" INTEGER NOT NULL DEFAULT 0,
    "due_at" INTEGER,
    "expires_at" INTEGER,
    "retries_left" INTEGER NOT NULL DEFAULT 0,
    "key" TEXT,
    "input_json" TEXT NOT NULL DEFAULT '{"args":[],"kwargs":{}}',
    "result_json" TEXT,
    "error_json" TEXT,
    "handler_version" TEXT,
    "needs" TEXT,
    "cancel_requested_at" INTEGER,
    "swap_path" TEXT,
    "trimmed_below" INTEGER NOT NULL DEFAULT 0,
    CHECK (status IN ('pending','running','completed','failed','interrupted','idle','swapped')),
    CHECK ((status IN ('completed','failed')) = (completed_at IS NOT NULL)),
    CHECK (hold IS NULL OR status = 'pending'),
    CHECK (hold IS NULL OR hold <> 'due' OR due_at IS NOT NULL),
    CHECK (attempt >= 0 AND losses >= 0 AND retries_left >= 0 AND recursion_depth >= 0)
);

CREATE INDEX "agent_tasks_blob" ON "agent_tasks" ("id") WHERE instr(result_json, '{"$blob"') > 0;

CREATE INDEX "agent_tasks_created" ON "agent_tasks" ("created_at");

CREATE INDEX "agent_tasks_due" ON "agent_tasks" ("due_at") WHERE hold = 'due';

CREATE INDEX "agent_tasks_ended" ON "agent_tasks" ("completed_at") WHERE completed_at IS NOT NULL;

CREATE INDEX "agent_tasks_expiry" ON "agent_tasks" ("expires_at") WHERE expires_at IS NOT NULL AND status = 'pending';

CREATE UNIQUE INDEX "agent_tasks_key" ON "agent_tasks" ("agent_id", "key") WHERE key IS NOT NULL;

CREATE INDEX "agent_tasks_parent" ON "agent_tasks" ("parent_task_id") WHERE parent_task_id IS NOT NULL;

CREATE INDEX "agent_tasks_ready" ON "agent_tasks" ("lane", "rank", "id") WHERE status = 'pending' AND hold IS NULL;

CREATE INDEX "agent_tasks_session" ON "agent_tasks" ("parent_session_id", "created_at");

CREATE INDEX "agent_tasks_status" ON "agent_tasks" ("status", "created_at");

CREATE INDEX "agent_tasks_unknown" ON "agent_tasks" ("agent_id") WHERE hold = 'unknown_agent';

CREATE INDEX "agent_tasks_worker" ON "agent_tasks" ("worker_id") WHERE worker_id IS NOT NULL;

CREATE TABLE "confirmation_steps" (
    "confirmation_id" TEXT NOT NULL,
    "step_key" TEXT NOT NULL,
    "digest" TEXT NOT NULL,
    "effect" TEXT NOT NULL,
    "attempt" INTEGER NOT NULL,
    "shown_json" TEXT NOT NULL,
    "decision" TEXT,
    "decided_at" INTEGER,
    "consumed_at" INTEGER,
    PRIMARY KEY ("confirmation_id", "step_key"),
    FOREIGN KEY (confirmation_id) REFERENCES confirmations (id) ON DELETE CASCADE
);

CREATE TABLE "confirmations" (
    "id" TEXT NOT NULL PRIMARY KEY,
    "task_id" TEXT NOT NULL,
    "kind" TEXT NOT NULL DEFAULT 'recovery',
    "status" TEXT NOT NULL DEFAULT 'open',
    "attempt" INTEGER NOT NULL,
    "request_json" TEXT NOT NULL,
    "asked_at" INTEGER NOT NULL,
    "decided_at" INTEGER,
    "decided_by" TEXT,
    "decision" TEXT,
    FOREIGN KEY (task_id) REFERENCES agent_tasks (id) ON DELETE CASCADE,
    CHECK (status IN ('open','approved','resolved','rejected','withdrawn'))
);

CREATE UNIQUE INDEX "confirmations_open" ON "confirmations" ("task_id") WHERE status = 'open' AND kind = 'recovery';

CREATE INDEX "confirmations_task" ON "confirmations" ("task_id");

CREATE TABLE counter (
    queue text not null, key text not null, value integer not null default 0, primary key(queue, key)
);

CREATE TABLE kv (queue text not null, key text not null, value blob not null, stored_at INTEGER, primary key(queue, key));

CREATE INDEX kv_stored_at ON kv (stored_at) WHERE stored_at IS NOT NULL;

CREATE TABLE "lane_pauses" (
    "lane" TEXT NOT NULL PRIMARY KEY,
    "paused_at" INTEGER NOT NULL,
    "paused_by" TEXT NOT NULL
);

CREATE TABLE "recovery_runs" (
    "id" INTEGER NOT NULL PRIMARY KEY,
    "started_at" INTEGER NOT NULL,
    "finished_at" INTEGER NOT NULL,
    "pid" INTEGER NOT NULL,
    "resumed" INTEGER NOT NULL DEFAULT 0,
    "asked" INTEGER NOT NULL DEFAULT 0,
    "skipped" INTEGER NOT NULL DEFAULT 0,
    "quarantined" INTEGER NOT NULL DEFAULT 0,
    "errors" INTEGER NOT NULL DEFAULT 0,
    "detail_json" TEXT
);

CREATE INDEX "recovery_runs_started_at" ON "recovery_runs" ("started_at");

CREATE TABLE schedule (
    id integer not null primary key, queue text not null, data blob not null, timestamp real not null
);

CREATE INDEX schedule_queue_timestamp ON schedule (queue, timestamp);

CREATE TABLE "schema_migration" ("id" INTEGER NOT NULL PRIMARY KEY, "name" TEXT NOT NULL, "applied" INTEGER NOT NULL);

CREATE UNIQUE INDEX "schema_migration_name" ON "schema_migration" ("name");

CREATE TABLE task (
    id integer not null primary key, queue text not null, data blob not null,
    priority real not null default 0.0
);

CREATE INDEX task_queue_priority_id ON task (queue, priority desc, id);

CREATE TABLE "task_traces" (
    "id" INTEGER NOT NULL PRIMARY KEY,
    "task_id" TEXT NOT NULL,
    "step_index" INTEGER NOT NULL,
    "event_kind" TEXT NOT NULL,
    "event_json" TEXT NOT NULL,
    "timestamp" INTEGER NOT NULL,
    "step_key" TEXT,
    "digest" TEXT,
    "attempt" INTEGER NOT NULL DEFAULT 0,
    "effect" TEXT,
    "late" INTEGER NOT NULL DEFAULT 0,
    "superseded" INTEGER NOT NULL DEFAULT 0,
    FOREIGN KEY (task_id) REFERENCES agent_tasks (id) ON DELETE RESTRICT,
    CHECK (step_index >= 0)
);

CREATE INDEX "task_traces_blob" ON "task_traces" ("id") WHERE instr(event_json, '{"$blob"') > 0;

CREATE INDEX "task_traces_step" ON "task_traces" ("task_id", "step_key") WHERE step_key IS NOT NULL;

CREATE UNIQUE INDEX "task_traces_task_id_step_index" ON "task_traces" ("task_id", "step_index");

CREATE TABLE "upkeep_marks" (
    "name" TEXT NOT NULL PRIMARY KEY,
    "value" INTEGER NOT NULL
);

CREATE TABLE "workers" (
    "id" TEXT NOT NULL PRIMARY KEY,
    "lane" TEXT NOT NULL,
    "pid" INTEGER NOT NULL,
    "host" TEXT NOT NULL,
    "lock_inode" INTEGER NOT NULL,
    "nonce" TEXT NOT NULL,
    "started_at" INTEGER NOT NULL,
    "renewed_at" INTEGER NOT NULL,
    "dead_at" INTEGER
);

CREATE INDEX "workers_alive" ON "workers" ("id") WHERE dead_at IS NULL;
