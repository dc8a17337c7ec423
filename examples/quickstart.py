from pathlib import Path

from relight import Run, agent, step


@step(effect="read")  # a finished step never runs again: its outcome is in the record
def count_words(file: str) -> int:
    return len(Path(file).read_text(errors="replace").split())


@step(effect="write")  # a write that was cut off is never repeated without a yes
def save(target: str, text: str) -> None:
    Path(target).write_text(text)


@agent(risk="high")  # it writes: after a crash it waits for a person
def word_report(run: Run, prompt: str, *, files: list[str], target: str) -> int:
    counts = {file: count_words(file) for file in files}
    save(target, prompt + "".join(f"\n{count:7} {file}" for file, count in counts.items()))
    return sum(counts.values())


if __name__ == "__main__":
    task = word_report.enqueue("Words", files=[__file__], target=f"{Path.cwd()}/words.txt")
    print(task.id, task.result(timeout=60))
