// Search runs in a worker, which browsers refuse to pages that are opened from a disk. There a
// frame does what the worker would: its global functions are those that a worker has.
if (location.protocol === "file:")
  window.Worker = class extends EventTarget {
    constructor(address) {
      super()
      const url = new URL(address, location)
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      const inside = (this.inside = frame.contentWindow)
      const load = source =>
        new Promise((done, failed) => {
          const script = inside.document.createElement("script")
          script.onload = done
          script.onerror = failed
          script.src = source
          inside.document.head.append(script)
        })
      inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      inside.importScripts = (...sources) =>
        sources.reduce(
          (before, each) => before.then(() => load(new URL(each, url))), Promise.resolve())
      this.ready = load(url)
    }
    postMessage(data) {
      this.ready.then(() =>
        this.inside.dispatchEvent(new this.inside.MessageEvent("message", { data })))
    }
  }
