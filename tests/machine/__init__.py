"""The real daemon process under faults of the machine below it, drawn from seeds.

- `clients`: who asks it, and remembers every answer;
- `judge`: starts it again afterwards and holds it to every answer that was given;
- `cut`: the power of its file system is cut under load;
- `injected`: single system calls of it fail, by strace;
- `full`: its file system is filled and freed at random;
- `network`: its store and its edge are behind connections that go wrong at random.

`python -m tests.machine NAME` runs one of the searches by hand for as long as it is told to.
"""
